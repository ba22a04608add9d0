-- requeue_letter: a dead letter becomes a new request, under a new id, and leaves the dead letters.
-- KEYS: in live ready:0 ready:1 ready:2 ready:R ready:S later when tags ten bell flags stat deps dlq | res:<rid> (res:<pred> body:<pred>)... of each it depends on
-- ARGV: now letter rid payload meta caps; the two latter as submit's, the new id made from the letter's
-- Replies: {OK, position, at} {DUP, position, at} {DONE} {GONE} (no such letter) {FULL, which, queued} {UNKNOWN, pred} {CROWDED, pred}
-- Moves: nothing to Q (or W, L, K as by submit). A second run finds the record (DUP) or the outcome (DONE).
-- FLAGS: deny-oom
-- USES: prelude numbers room ready accept predecessors letters
local now = queue_now()
local rid, m, caps = ARGV[3], cmsgpack.unpack(ARGV[5]), cmsgpack.unpack(ARGV[6])
if redis.call('EXISTS', KEYS[NK + 1]) == 1 then return {'DONE'} end
local old, why = load_record(rid)
if why then return {'DONE'} end
if old then return {'DUP', position(rid, old), int(old[R_EV][1][1])} end
local letter = redis.call('XRANGE', K_dlq, ARGV[2], ARGV[2])[1]
if not letter then return {'GONE'} end
local refusal, awaited, is_failed = look_at(m[9], m[2], KEYS, NK + 2)
if refusal then return refusal end
local full, n_live = take_room(m[2], 1, m[3], caps)
if full then return {'FULL', full, n_live} end
local rec = new_record(now, m, '', ARGV[4], rid, awaited, is_failed)
if not is_failed then depend(rid, m[9], awaited, KEYS, NK + 2, m[4]) end
take_letter(letter)
count('submitted')
count('requeued')
ring()
return {'OK', position(rid, rec), int(wall)}
