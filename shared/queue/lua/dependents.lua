-- Who waits for a request that ends, shared by finish and end. Goes with ready; needs the fixed keys live, when, deps too.

-- In most queues nobody waits for anybody, so that is asked once a command.
local has_deps

local function take_out(list, item)
  for i, x in ipairs(list) do
    if x == item then return table.remove(list, i) end
  end
end

-- `pred` has ended: who awaited nothing else is ready; where it did not finish, all of them are for the sweep to end, and
-- those that wait for them in a later round. Returns for how many ms its answer is still needed.
local function release_dependents(pred, is_finished, now)
  if has_deps == nil then has_deps = redis.call('EXISTS', K_deps) == 1 end
  local packed = has_deps and redis.call('HGET', K_deps, pred)
  if not packed then return 0 end
  redis.call('HDEL', K_deps, pred)
  local needed_ms, has_ready = 0, false
  for _, rid in ipairs(list_of(packed)) do
    local rec = load_record(rid)
    if rec then
      take_out(rec[R_DEP], pred)
      if rec[R_ST] == 'W' then
        if not is_finished then
          rec[R_ST] = 'K'
          add_event(rec, 'dead', 'dependency_failed')
          redis.call('ZADD', K_when, now, rid)
        else
          needed_ms = math.max(needed_ms, rec[R_DL] - now)
          if #rec[R_DEP] == 0 then
            add_event(rec, 'ready', pred)
            make_ready(rid, rec, now)
            has_ready = true
          end
        end
      end
      save_record(rid, rec)
    end
  end
  if has_ready then ring() end
  return needed_ms
end

-- It ends before what it waits for, which need not remember it any more.
local function leave_predecessors(rid, rec)
  for _, pred in ipairs(rec[R_DEP]) do
    local list = list_of(redis.call('HGET', K_deps, pred))
    take_out(list, rid)
    if #list > 0 then
      redis.call('HSET', K_deps, pred, cmsgpack.pack(list))
    else
      redis.call('HDEL', K_deps, pred)
    end
  end
end
