-- settle: the usage of a run whose request was ended while it ran.
-- KEYS: flags stat | res:<rid> use:<rid>
-- ARGV: now rid token usage output_tokens ttl_ms
-- Replies: {OK} {ALREADY} {GONE}
-- Moves: none. Once for each request: the first token that settles stands.
-- FLAGS: allow-oom
-- USES: prelude
if redis.call('EXISTS', KEYS[NK + 1]) == 0 then return {'GONE'} end
if not redis.call('SET', KEYS[NK + 2], ARGV[3] .. ' ' .. ARGV[4], 'PX', ARGV[6], 'NX') then return {'ALREADY'} end
redis.call('HINCRBY', K_stat, 'settled_tokens', ARGV[5])
return {'OK'}
