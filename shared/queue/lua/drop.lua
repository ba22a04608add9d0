-- drop: the answers of requests that have ended are taken away, and what was streamed of them; that they were there stays.
-- KEYS: flags | body:<rid> part:<rid>...
-- ARGV: now
-- Replies: {how many keys there were}
-- Moves: none. Twice is as once.
-- FLAGS: allow-oom
-- USES: prelude
return {redis.call('UNLINK', unpack(KEYS, NK + 1))}
