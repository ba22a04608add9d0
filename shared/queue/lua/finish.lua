-- finish: store a result, if the lease is still the caller's; everything that follows from it in the same step.
-- KEYS: in live ready:0 ready:1 ready:2 ready:R ready:S later lease when tags ten recent stat flags resv deps bell dlq | res:<rid> body:<rid> part:<rid> grp:<parent> res:<parent> out:<api>...
-- ARGV: now rid wid token state code message report body has_body ttl_ms body_ttl_ms inline_max apis letters_max_bytes
-- Replies: {OK, state before, missed api...} {ALREADY} {LOST} {GONE}
-- Moves: R (or Q, S after a lost lease that nobody claimed yet) to F or E; those that waited for nothing but this from W
--        to Q or L, or all that waited to K where it did not finish. What its worker could not read (bad_record) is kept as
--        a dead letter. A second run finds its token in the outcome.
-- FLAGS: allow-oom
-- USES: prelude numbers room ready dependents letters terminal
local now = queue_now()
local rid, wid, token = ARGV[2], ARGV[3], ARGV[4]
local rec, why = load_record(rid)
if why then return {'LOST'} end
if not rec then
  local res = redis.call('GET', KEYS[NK + 1])
  if not res then return {'GONE'} end
  local o = cmsgpack.unpack(res)
  -- Without a report it was ended from outside while this token was its: that is no result of this run.
  if o[5] == wid and o[6] == token and (o[2] == 'F' or o[2] == 'E') and o[16] ~= '' then return {'ALREADY'} end
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
for i, api in ipairs(split(ARGV[14])) do outs[api] = KEYS[NK + 5 + i] end
local payload = ARGV[6] == 'bad_record' and payload_of(rec)
local missed, outcome = terminate(rid, rec, now, ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[10] == '1' and ARGV[9] or nil,
  {KEYS[NK + 1], KEYS[NK + 2], KEYS[NK + 3], KEYS[NK + 4], KEYS[NK + 5]}, outs, ARGV[11], ARGV[12], tonumber(ARGV[13]))
if payload then keep_letter(rid, payload, outcome, tonumber(ARGV[15])) end
local reply = {'OK', was}
for _, api in ipairs(missed) do reply[#reply + 1] = api end
return reply
