-- end: bring a live request to its end from outside: cancelled, expired, dead, or nobody waits any more.
-- KEYS: in live ready:0 ready:1 ready:2 ready:R ready:S later lease when ten recent stat flags resv | res:<rid> body:<rid> grp:<parent> res:<parent> ctl:<wid> out:<api>...
-- ARGV: now rid how code message wid ttl_ms apis; how = cancel, expire, dead
-- Replies: {OK, state before, wid} {GONE} {NOTDUE} {KEYS} (declared for another owner: peek again)
-- Moves: any live state to C or E. A running one's worker is told through ctl and finds out by its beat.
-- FLAGS: allow-oom
-- USES: prelude room terminal
local now = queue_now()
local rid, how, code, message = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local rec = load_record(rid)
if not rec then return {'GONE'} end
local outs = {}
for i, api in ipairs(split(ARGV[8])) do outs[api] = KEYS[NK + 5 + i] end
if rec[R_W] ~= ARGV[6] then return {'KEYS'} end
if rec[R_PA] == '' then
  for _, api in ipairs(rec[R_APIS]) do
    if not outs[api] then return {'KEYS'} end
  end
end
local was, state = rec[R_ST], 'E'
if how == 'cancel' then
  state = 'C'
elseif how == 'expire' then
  if was == 'K' then return {'NOTDUE'} end
  if was == 'R' then
    if rec[R_DL] + 2000 > now then return {'NOTDUE'} end
    code, message = 'deadline_exceeded', 'the deadline passed while it ran'
  else
    if math.min(rec[R_DL], rec[R_QT]) > now then return {'NOTDUE'} end
    code, message = 'expired', 'it was still queued when its time was over'
  end
elseif was ~= 'K' then
  return {'NOTDUE'}
else
  local ev = rec[R_EV][#rec[R_EV]]
  code = ev and ev[3] ~= '' and ev[3] or 'attempts_exhausted'
  message = code == 'payload_lost' and 'its entry was removed from the stream' or 'its workers died or failed too often'
end
if was == 'R' and rec[R_W] ~= '' then
  redis.call('ZADD', KEYS[NK + 5], int(now), rid)
  redis.call('PEXPIRE', KEYS[NK + 5], 60000)
end
local missed = terminate(rid, rec, now, state, code, message, '', nil,
  {KEYS[NK + 1], KEYS[NK + 2], KEYS[NK + 3], KEYS[NK + 4]}, outs, ARGV[7], ARGV[7], 0)
local reply = {'OK', was, rec[R_W]}
for _, api in ipairs(missed) do reply[#reply + 1] = api end
return reply
