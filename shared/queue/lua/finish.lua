-- finish: store a result, if the lease is still the caller's; everything that follows from it in the same step.
-- KEYS: in live ready:0 ready:1 ready:2 ready:R ready:S later lease when ten recent stat flags resv | res:<rid> body:<rid> grp:<parent> res:<parent> out:<api>...
-- ARGV: now rid wid token state code message report body has_body ttl_ms body_ttl_ms inline_max apis
-- Replies: {OK, state before, missed api...} {ALREADY} {LOST} {GONE}
-- Moves: R (or Q, S after a lost lease that nobody claimed yet) to F or E. A second run finds its token in the outcome.
-- FLAGS: allow-oom
-- USES: prelude room terminal
local now = queue_now()
local rid, wid, token = ARGV[2], ARGV[3], ARGV[4]
local rec = load_record(rid)
if not rec then
  local res = redis.call('GET', KEYS[NK + 1])
  if not res then return {'GONE'} end
  local o = cmsgpack.unpack(res)
  if o[6] == token and (o[2] == 'F' or o[2] == 'E') then return {'ALREADY'} end
  return {'LOST'}
end
if rec[R_W] ~= wid or rec[R_TOK] ~= token or rec[R_ST] == 'K' then return {'LOST'} end
local was = rec[R_ST]
if was ~= 'R' then
  leave_sets(rid, rec)
  rec[R_ST] = 'R'
  add_event(rec, 'late', wid)
end
local outs = {}
for i, api in ipairs(split(ARGV[14])) do outs[api] = KEYS[NK + 4 + i] end
local missed = terminate(rid, rec, now, ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[10] == '1' and ARGV[9] or nil,
  {KEYS[NK + 1], KEYS[NK + 2], KEYS[NK + 3], KEYS[NK + 4]}, outs, ARGV[11], ARGV[12], tonumber(ARGV[13]))
local reply = {'OK', was}
for _, api in ipairs(missed) do reply[#reply + 1] = api end
return reply
