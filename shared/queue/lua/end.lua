-- end: bring a live request to its end from outside: cancelled, expired, dead, or nobody waits any more.
-- KEYS: in live ready:0 ready:1 ready:2 ready:R ready:S later lease when tags ten recent stat flags resv deps bell dlq | res:<rid> body:<rid> part:<rid> grp:<parent> res:<parent> ctl:<wid> out:<api>...
-- ARGV: now rid how code message wid ttl_ms part_ttl_ms apis letters_max_bytes; how = cancel, expire, dead, bad (who
--       asks cannot read its record)
-- Replies: {OK, state before, wid} {GONE} {NOTDUE} {KEYS} (declared for another owner: peek again) {NEWER} (a record of a
--          later release, which sees to it)
-- Moves: any live state to C or E, and those that waited for it from W to K. A running one's worker is told through ctl
--        and finds out by its beat. One whose crashes or attempts are used up is kept as a dead letter; one whose record
--        cannot be read ends as bad_record, whatever was asked.
-- FLAGS: allow-oom
-- USES: prelude numbers room ready dependents letters terminal
local DEAD = {
  attempts_exhausted = 'its workers died or failed too often',
  bad_record = 'its record cannot be read',
  client_gone = 'its client left',
  dependency_failed = 'a request that it depends on did not finish',
  payload_lost = 'its entry was removed from the stream',
}

-- What can be told of a request whose record cannot be read: at most whose it was, how much it reserved, its digest.
local function salvage(rid, raw, now)
  local is_read, r = pcall(cmsgpack.unpack, raw)
  if not is_read or type(r) ~= 'table' then r = {} end
  local function text(field) return type(r[field]) == 'string' and r[field] or '' end
  local tokens = type(r[R_TK]) == 'number' and r[R_TK] >= 0 and r[R_TK] < EXACT and math.floor(r[R_TK]) or 0
  local entry = string.match(text(R_EI), '^%d+%-%d+$') or '0-1'
  local parent = string.match(rid, '^([^.]+%.%d+%-%w+)%.%d+$') or ''
  return {1, 'K', #entry < 22 and entry or '0-1', 1, text(R_TN), tokens, now, now, now, '', '', 0, 0, 0, 0, {}, '', text(R_DG),
    parent, {}, '', {{wall, 'dead', 'bad_record'}}, '', 0, 0, 0, 0, 1}
end

local now = queue_now()
local rid, how, code, message = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local rec, why = load_record(rid)
if why == 'NEWER' then return {'NEWER'} end
if why == 'BAD' or rec and how == 'bad' then
  why = 'BAD'
  -- Nothing it says can be trusted, so it is taken out of wherever it may be.
  for _, set in ipairs({K_ready_0, K_ready_1, K_ready_2, K_ready_R, K_ready_S, K_later, K_lease}) do
    redis.call('ZREM', set, rid)
  end
  rec, how = salvage(rid, redis.call('HGET', K_live, rid), now), 'dead'
end
if not rec then return {'GONE'} end
local outs = {}
for i, api in ipairs(split(ARGV[9])) do outs[api] = KEYS[NK + 6 + i] end
if not why and rec[R_W] ~= ARGV[6] then return {'KEYS'} end
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
  message = DEAD[code] or code
  if code == 'client_gone' then state = 'C' end
end
if was == 'R' and rec[R_W] ~= '' then
  redis.call('ZADD', KEYS[NK + 6], now, rid)
  redis.call('PEXPIRE', KEYS[NK + 6], 60000)
end
local payload = code == 'attempts_exhausted' and payload_of(rec)
local missed, outcome = terminate(rid, rec, now, state, code, message, '', nil,
  {KEYS[NK + 1], KEYS[NK + 2], KEYS[NK + 3], KEYS[NK + 4], KEYS[NK + 5]}, outs, ARGV[7], ARGV[8], 0)
if payload then keep_letter(rid, payload, outcome, tonumber(ARGV[10])) end
local reply = {'OK', was, rec[R_W]}
for _, api in ipairs(missed) do reply[#reply + 1] = api end
return reply
