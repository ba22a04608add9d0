-- drop_letter: a dead letter is taken away.
-- KEYS: dlq stat flags
-- ARGV: now letter
-- Replies: {OK} {GONE}
-- Moves: none. A second run finds nothing (GONE).
-- FLAGS: allow-oom
-- USES: prelude letters
local letter = redis.call('XRANGE', K_dlq, ARGV[2], ARGV[2])[1]
if not letter then return {'GONE'} end
take_letter(letter)
return {'OK'}
