-- Who reads along: a held request goes no further than its readers. Needs the fixed keys live, when, apis.

local ticks = {}

local function ticked_at(api)
  if not ticks[api] then ticks[api] = tonumber(redis.call('HGET', K_apis, api)) or 0 end
  return ticks[api]
end

-- When it counts as abandoned unless one of its apis ticks again. From the submit at the earliest: where the broker came
-- back empty, the next tick names the api again.
local function abandoned_at(rec)
  local last = rec[R_T0]
  for _, api in ipairs(rec[R_APIS]) do last = math.max(last, ticked_at(api)) end
  return last + ABSENT_MS
end

local function is_abandoned(rec, now) return rec[R_HELD] == 1 and abandoned_at(rec) <= now end

-- To K, out of whichever set the caller has taken it: the sweep hands it out to be ended as cancelled.
local function abandon(rid, rec, now)
  rec[R_ST] = 'K'
  add_event(rec, 'dead', 'client_gone')
  save_record(rid, rec)
  redis.call('ZADD', K_when, now, rid)
end
