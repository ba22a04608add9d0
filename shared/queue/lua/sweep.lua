-- sweep: hand out ids that are due for `end` (time over, or K), and lists whose reservation ran out or that are still to be
-- cancelled; at most n of each.
-- KEYS: live ready:0 ready:1 ready:2 ready:R ready:S later when resv apis flags
-- ARGV: now n
-- Replies: {{rid...}, {parent...}}; an id is offered again in 5 s until it is ended, a list each time
-- Moves: a queued one whose caller's api has gone to K; while that is there it is only looked at again in time.
-- FLAGS: allow-oom
-- USES: prelude readers
local now, n = queue_now(), tonumber(ARGV[2])

local READY = {K_ready_0, K_ready_1, K_ready_2, K_ready_R, K_ready_S, K_later}

-- Queued with time left, for a caller that is or was on the line.
local function is_held(rec)
  return rec and rec[R_HELD] == 1 and is_queued(rec) and math.min(rec[R_DL], rec[R_QT]) > now
end

local due, looked = {}, 0
while #due < n and looked < 2 * n do
  local ids = redis.call('ZRANGEBYSCORE', K_when, '-inf', int(now), 'LIMIT', 0, n - #due)
  if #ids == 0 then break end
  looked = looked + #ids
  for _, rid in ipairs(ids) do
    local rec, why = load_record(rid)
    local again = now + 5000
    if not rec and not why then
      again = nil
    elseif is_held(rec) and not is_abandoned(rec, now) then
      again = math.min(rec[R_DL], rec[R_QT], abandoned_at(rec))
    else
      if is_held(rec) then
        for _, set in ipairs(READY) do redis.call('ZREM', set, rid) end
        abandon(rid, rec, now)
      end
      due[#due + 1] = rid
    end
    if again then
      redis.call('ZADD', K_when, again, rid)
    else
      redis.call('ZREM', K_when, rid)
    end
  end
end
return {due, redis.call('ZRANGEBYSCORE', K_resv, '-inf', int(now), 'LIMIT', 0, n)}
