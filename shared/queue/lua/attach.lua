-- attach: one more api that wants a live request's notice (at most 4).
-- KEYS: live flags | grp:<rid>
-- ARGV: now rid api
-- Replies: {OK} {GONE}
-- Moves: none. Twice is as once.
-- FLAGS: allow-oom
-- USES: prelude
local rid, api = ARGV[2], ARGV[3]
local rec = load_record(rid)
if rec then
  for _, known in ipairs(rec[R_APIS]) do
    if known == api then return {'OK'} end
  end
  -- The oldest reader but the owner makes room: it still finds the result by its reconcile.
  if #rec[R_APIS] >= 4 then table.remove(rec[R_APIS], 2) end
  rec[R_APIS][#rec[R_APIS] + 1] = api
  save_record(rid, rec)
  return {'OK'}
end
local apis = redis.call('HGET', KEYS[NK + 1], 'apis')
if not apis then return {'GONE'} end
if not string.find(',' .. apis .. ',', ',' .. api .. ',', 1, true) then
  local list = split(apis)
  if #list >= 4 then table.remove(list, 2) end
  list[#list + 1] = api
  redis.call('HSET', KEYS[NK + 1], 'apis', table.concat(list, ','))
end
return {'OK'}
