-- Ways back from R, shared by nack and reap. Goes with numbers; needs the fixed keys live, ready:R, ready:S, lease, when, flags.

local function away(rid, rec)
  redis.call('ZREM', K_lease, rid)
  -- It has been served once: only its deadline ends it now, not its time in the queue.
  redis.call('ZADD', K_when, rec[R_DL], rid)
end

-- A suspect stays one until it has ended, whichever way it comes back.
local function put_back(rid, rec)
  if rec[R_CR] > 0 then
    redis.call('ZADD', K_ready_S, suspect_rank(rec), rid)
  else
    redis.call('ZADD', K_ready_R, rec[R_T0], rid)
  end
end

local function requeue(rid, rec, now, kind, cause)
  rec[R_ST], rec[R_QT] = 'Q', rec[R_DL]
  add_event(rec, kind, cause)
  save_record(rid, rec)
  away(rid, rec)
  put_back(rid, rec)
  count(kind)
end

-- K is not the end: the sweep hands it out at once and again every 5 s until `end` has run.
local function kill(rid, rec, now, code)
  rec[R_ST] = 'K'
  add_event(rec, 'dead', code)
  save_record(rid, rec)
  redis.call('ZREM', K_lease, rid)
  redis.call('ZADD', K_when, now, rid)
  count('dead')
end

local function crash(rid, rec, now, cause, max_crashes)
  rec[R_CR] = rec[R_CR] + 1
  count('crashes')
  if rec[R_CR] > max_crashes then
    add_event(rec, 'crash', cause)
    kill(rid, rec, now, 'attempts_exhausted')
    return 'DEAD'
  end
  rec[R_ST], rec[R_QT] = 'Q', rec[R_DL]
  add_event(rec, 'suspect', cause)
  save_record(rid, rec)
  away(rid, rec)
  put_back(rid, rec)
  return 'OK'
end
