-- submit_many: the next chunk (at most 64) of a reserved list's children.
-- KEYS: in live ready:0 ready:1 ready:2 ready:R ready:S later when tags ten bell flags stat resv | grp:<parent>
-- ARGV: now parent start meta (payload tokens delivery)...; meta as submit's, those two of it unused
-- Replies: {OK, submitted} {DUP, submitted} {GONE} (the reservation ran out or the list was cancelled) {GAP, submitted}
-- Moves: nothing to Q for each child, whose id is parent.index. A second run sees `submitted` past its start (DUP).
-- FLAGS: deny-oom
-- USES: prelude numbers ready accept
local now = queue_now()
local parent, start, m = ARGV[2], tonumber(ARGV[3]), cmsgpack.unpack(ARGV[4])
local grp = KEYS[NK + 1]
local g = redis.call('HMGET', grp, 'n', 'submitted', 'cancelled')
local n = (#ARGV - 4) / 3
if not g[1] then return {'GONE'} end
local done = tonumber(g[2])
-- First: a cancel counts the children as submitted that never were, so `submitted` would say DUP of them.
if g[3] == '1' then return {'GONE'} end
if done >= start + n then return {'DUP', done} end
if not redis.call('ZSCORE', K_resv, parent) then return {'GONE'} end
if done ~= start then return {'GAP', done} end
local left = tonumber(redis.call('HGET', grp, 'tokens'))
for i = 0, n - 1 do
  m[3], m[7] = tonumber(ARGV[6 + 3 * i]), ARGV[7 + 3 * i]
  left = left - m[3]
  new_record(now, m, parent, ARGV[5 + 3 * i], parent .. '.' .. (start + i), {})
end
redis.call('HSET', grp, 'submitted', start + n, 'tokens', left)
count('submitted', n)
if start + n == tonumber(g[1]) then
  redis.call('ZREM', K_resv, parent)
else
  redis.call('ZADD', K_resv, now + 30000, parent)
end
ring()
return {'OK', start + n}
