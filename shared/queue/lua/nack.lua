-- nack: a worker gives a request back: release (not started, nothing counted), retry (it failed), suspect (the engine died).
-- KEYS: live ready:R ready:S later lease when bell flags stat
-- ARGV: now wid how cause max_attempts max_crashes delay_ms (rid token)...
-- Replies: {OK | LOST | DEAD, ...} one for each
-- Moves: R to Q (lane R or S), L, or K when attempts or crashes are used up. A second run finds it no longer R (LOST).
--        The delay doubles with each attempt, to 60 s at most; who calls has put the jitter into it.
-- FLAGS: allow-oom
-- USES: prelude numbers requeue
local now = queue_now()
local wid, how, cause = ARGV[2], ARGV[3], ARGV[4]
local max_attempts, max_crashes, delay_ms = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local RETRY_MAX_MS = 60000
local reply = {}
for i = 8, #ARGV, 2 do
  local rid, token = ARGV[i], ARGV[i + 1]
  local rec = load_record(rid)
  if not rec or rec[R_ST] ~= 'R' or rec[R_W] ~= wid or rec[R_TOK] ~= token then
    reply[#reply + 1] = 'LOST'
  else
    -- Owner and token go, so that nothing more is taken from this run.
    rec[R_W], rec[R_TOK] = '', ''
    if how == 'release' then
      requeue(rid, rec, now, 'released', cause)
      reply[#reply + 1] = 'OK'
    elseif how == 'retry' then
      rec[R_AT] = rec[R_AT] + 1
      if rec[R_AT] >= max_attempts then
        add_event(rec, 'failed', cause)
        kill(rid, rec, now, 'attempts_exhausted')
        reply[#reply + 1] = 'DEAD'
      else
        -- It has been served once: only its deadline ends it now, not its time in the queue.
        rec[R_ST], rec[R_QT] = 'L', rec[R_DL]
        add_event(rec, 'retry', cause)
        save_record(rid, rec)
        redis.call('ZREM', K_lease, rid)
        local wait_ms = math.min(delay_ms * 2 ^ (rec[R_AT] - 1), RETRY_MAX_MS)
        redis.call('ZADD', K_later, now + wait_ms, rid)
        redis.call('ZADD', K_when, rec[R_DL], rid)
        reply[#reply + 1] = 'OK'
      end
    else
      reply[#reply + 1] = crash(rid, rec, now, cause, max_crashes)
    end
  end
end
ring()
return reply
