-- reserve: room for the N children of a list, all or nothing; the list exists from here on.
-- KEYS: live ten resv flags stat | res:<parent> grp:<parent>
-- ARGV: now parent n tokens tenant digest api delivery caps
-- Replies: {OK, at} {DUP, at} {DONE} {MISMATCH} {FULL, which, queued}
-- Moves: none. A second run finds the group (DUP). An unused reservation is swept after 30 s.
-- FLAGS: deny-oom
-- USES: prelude numbers room
local now = queue_now()
local parent, n, tokens, tenant, digest = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
local caps = cmsgpack.unpack(ARGV[9])
local grp = KEYS[NK + 2]
local res = redis.call('GET', KEYS[NK + 1])
if res then
  return {cmsgpack.unpack(res)[12] == digest and 'DONE' or 'MISMATCH'}
end
if redis.call('HEXISTS', K_live, parent) == 1 then return {'MISMATCH'} end
local old = redis.call('HMGET', grp, 'digest', 'at')
if old[1] then
  if old[1] ~= digest then return {'MISMATCH'} end
  return {'DUP', old[2]}
end
local full, n_live = take_room(tenant, n, tokens, caps)
if full then return {'FULL', full, n_live} end
redis.call('HSET', grp, 'n', n, 'submitted', 0, 'terminal', 0, 'tokens', tokens, 'digest', digest, 'tenant', tenant,
  'apis', ARGV[7], 'delivery', ARGV[8], 't0', int(now), 'at', int(wall), 'cancelled', 0)
redis.call('ZADD', K_resv, now + 30000, parent)
count('lists')
return {'OK', int(wall)}
