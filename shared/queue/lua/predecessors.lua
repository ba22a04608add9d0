-- What a request depends on, shared by submit and requeue_letter. `deps` holds for each predecessor the packed list of
-- those that wait for it. Needs the fixed keys live, deps; the caller declares res:<pred> body:<pred> of each in turn.

local DEPENDENTS_MAX = 64

local function waiting_for(pred) return list_of(redis.call('HGET', K_deps, pred)) end

-- Changes nothing. Returns what refuses the request, or nil, those that have not ended, and whether one did not finish.
-- keys[first] is the first one's outcome, its body the next.
local function look_at(preds, tenant, keys, first)
  local awaited, is_failed = {}, false
  for i, pred in ipairs(preds) do
    local rec = load_record(pred)
    if rec then
      if rec[R_TN] ~= tenant then return {'UNKNOWN', pred} end
      if #waiting_for(pred) >= DEPENDENTS_MAX then return {'CROWDED', pred} end
      awaited[#awaited + 1] = pred
    else
      local raw = redis.call('GET', keys[first + 2 * i - 2])
      local outcome = raw and cmsgpack.unpack(raw)
      if not outcome or outcome[13] ~= tenant or outcome[18] > 0 then return {'UNKNOWN', pred} end
      if outcome[2] ~= 'F' then
        is_failed = true
      elseif redis.call('EXISTS', keys[first + 2 * i - 1]) == 0 then
        return {'UNKNOWN', pred}
      end
    end
  end
  return nil, is_failed and {} or awaited, is_failed
end

-- It is in the list of each that it awaits, and the answers of those that have finished live as long as it may.
local function depend(rid, preds, awaited, keys, first, timeout_ms)
  for _, pred in ipairs(awaited) do
    local list = waiting_for(pred)
    list[#list + 1] = rid
    redis.call('HSET', K_deps, pred, cmsgpack.pack(list))
  end
  for i = first, first + 2 * #preds - 1 do
    local left_ms = redis.call('PTTL', keys[i])
    if left_ms >= 0 and left_ms < timeout_ms then redis.call('PEXPIRE', keys[i], int(timeout_ms)) end
  end
end
