-- set_prompt: store a new system prompt as the next version; has_text 0 takes the stored one away, which is a version too.
-- KEYS: sys flags
-- ARGV: now text has_text by
-- Replies: {version}
-- Moves: none. What is stored already stays the version that it is, so twice is as once.
-- FLAGS: deny-oom
-- USES: prelude
local now = queue_now()
local known = redis.call('HMGET', K_sys, 'v', 't')
if known[1] and known[2] == (ARGV[3] == '1' and ARGV[2]) then return {tonumber(known[1])} end
local v = redis.call('HINCRBY', K_sys, 'v', 1)
redis.call('HSET', K_sys, 'at:' .. v, int(now), 'by:' .. v, ARGV[4])
if ARGV[3] == '1' then
  redis.call('HSET', K_sys, 't', ARGV[2], 't:' .. v, ARGV[2])
else
  redis.call('HDEL', K_sys, 't')
end
redis.call('HDEL', K_sys, 't:' .. (v - 20), 'at:' .. (v - 20), 'by:' .. (v - 20))
return {v}
