-- notify: tell one api of an outcome that it was not told of when it happened.
-- KEYS: flags | res:<rid> body:<rid> out:<api>
-- ARGV: now rid inline_max
-- Replies: {OK} {GONE}
-- Moves: none. A second notice finds nobody waiting.
-- FLAGS: allow-oom
-- USES: prelude
local outcome = redis.call('GET', KEYS[NK + 1])
if not outcome then return {'GONE'} end
local body = redis.call('GET', KEYS[NK + 2])
local fields = {'i', ARGV[2], 'r', outcome}
if body and #outcome + #body <= tonumber(ARGV[3]) then
  fields[5], fields[6] = 'b', body
end
redis.call('XADD', KEYS[NK + 3], 'NOMKSTREAM', 'MAXLEN', '~', OUT_MAX, '*', unpack(fields))
return {'OK'}
