-- Making a live request, shared by submit, submit_many and requeue_letter. Goes with ready; needs the fixed keys in,
-- live, ready:R, ready:S, when too.

-- -1: not queued.
local function position(rid, rec)
  if rec[R_ST] ~= 'Q' then return -1 end
  local ahead, rank = ahead_of(rid, rec)
  return ahead + (rank or 0)
end

local dues

at_end[#at_end + 1] = function()
  if dues then write('ZADD', K_when, dues) end
end

-- `awaited`: the predecessors that have not ended. `is_failed`: one of them did not finish, so the sweep ends this.
local function new_record(now, m, parent, payload, rid, awaited, is_failed)
  local lane, tenant, tokens = m[1], m[2], m[3]
  local eid = redis.call('XADD', K_in, '*', 'i', rid, 'p', payload)
  local rec = {1, 'W', eid, lane, tenant, tokens, now, now + m[4], now + m[5], '', '', 0, 0, 0, 0,
    m[6] ~= '' and {m[6]} or {}, m[7], m[8], parent, awaited, m[10], {{wall, 'submitted', ''}}, m[11], 0, -1, m[14],
    m[12] > 0 and now + m[12] or 0, m[13]}
  local due = due_at(rec, now)
  if is_failed then
    rec[R_ST], due = 'K', now
    add_event(rec, 'dead', 'dependency_failed')
  elseif #awaited > 0 then
    add_event(rec, 'waits', int(#awaited))
  else
    make_ready(rid, rec, now)
  end
  save_record(rid, rec)
  dues = add(dues, due, rid)
  return rec
end
