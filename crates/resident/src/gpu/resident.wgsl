// The loop that serves all resident kernels of a device, in leases. What stands before it is made by `program.rs`: where
// everything lies, the handlers, `serve`, `order` and the entry point.
//
// One thread runs it. It is the only one that takes from inbound rings and that puts into outbound ones, so positions
// need no atomic steps, and a message from kernel to kernel is written where the other will find it. Loads and stores
// are atomics because the host reads and writes the same words meanwhile; `order` stands wherever words must be seen
// before the sequence word that says so, or be read after it.
//
// It is three loops in each other, because a driver that runs threads as vectors does not jump over what a condition
// excludes: all code in a loop is run in each of its turns, and costs its time, whether it does anything or not. So the
// innermost loop only polls, the middle one handles messages of one kernel, and what happens rarely is in the outer one.

// Turns of loops in this lease; a lease that made many ends, because some drivers end loops by force.
var<private> spent: u32;
// A handler needs more turns than this lease has left, and has its turn first in the next one.
var<private> starved: bool;
// Nothing was served in this lease, and nothing was waited for: no other has more turns for a handler.
var<private> fresh: bool;

// The kernel whose turn it is, as its memory says.
var<private> region: u32;
var<private> own: u32;
var<private> handler: u32;
var<private> state_at: u32;
var<private> memory_at: u32;
var<private> memory_words: u32;
var<private> status: u32;
var<private> request: u32;
var<private> high: u32;
var<private> normal: u32;
var<private> out: u32;
var<private> burst: u32;
var<private> high_first: u32;
var<private> normal_first: u32;
var<private> out_first: u32;
var<private> link_first: u32;
var<private> in_stride: u32;
var<private> out_stride: u32;
var<private> in_mask: u32;
var<private> out_mask: u32;
var<private> links: u32;
var<private> fed: u32;
var<private> every: u32;
var<private> link_head: u32;
var<private> link_mask: u32;
// Up to where messages of other kernels are in the last checkpoint: those behind it are kept in their ring.
var<private> link_saved: u32;
// Messages in that ring that were sent before the device was lost, and how many of them, the last, are to be answered.
var<private> replay: u32;
var<private> loud: u32;
var<private> high_laps: u32;
var<private> normal_laps: u32;
var<private> dirty: u32;
var<private> since: u32;
var<private> turn_of: u32;
var<private> bound: u32;
var<private> version: u32;
var<private> handled: u32;
var<private> failed: u32;
var<private> sent: u32;
var<private> clock_low: u32;
var<private> clock_high: u32;

fn word(at: u32) -> u32 {
    return atomicLoad(&arena[at]);
}

fn put(at: u32, value: u32) {
    atomicStore(&arena[at], value);
}

// For handlers: a word of the kernel's own memory.
fn load(at: u32) -> u32 {
    if (at >= memory_words) {
        return 0u;
    }
    return word(memory_at + at);
}

fn store(at: u32, value: u32) {
    if (at < memory_words) {
        put(memory_at + at, value);
    }
}

fn count(at: u32) {
    let more = word(at) + 1u;
    put(at, more);
    if (more == 0u) {
        put(at + 1u, word(at + 1u) + 1u);
    }
}

fn enter(number: u32) {
    let entry = DIRECTORY_ENTRIES + number * ENTRY_WORDS;
    region = word(entry + ENTRY_REGION);
    own = word(entry + ENTRY_OWN);
    handler = word(entry + ENTRY_HANDLER);
    state_at = word(entry + ENTRY_STATE);
    memory_at = word(entry + ENTRY_MEMORY);
    memory_words = word(entry + ENTRY_MEMORY_WORDS);
    link_first = word(entry + ENTRY_LINK_FIRST);
    every = word(entry + ENTRY_CHECKPOINT_EVERY);
    links = word(entry + ENTRY_LINKS);
    fed = word(entry + ENTRY_FED);
    status = word(region + CONTROL_STATUS);
    request = word(region + CONTROL_ACKNOWLEDGED);
    high = word(region + CONTROL_HIGH_HEAD);
    normal = word(region + CONTROL_NORMAL_HEAD);
    out = word(region + CONTROL_OUT_TAIL);
    burst = word(region + CONTROL_BURST);
    high_first = region + word(region + CONTROL_HIGH_FIRST);
    normal_first = region + word(region + CONTROL_NORMAL_FIRST);
    out_first = region + word(region + CONTROL_OUT_FIRST);
    in_stride = word(region + CONTROL_IN_STRIDE);
    out_stride = word(region + CONTROL_OUT_STRIDE);
    in_mask = word(region + CONTROL_IN_MASK);
    out_mask = word(region + CONTROL_OUT_MASK);
    link_head = word(own + OWN_LINK_HEAD);
    link_mask = word(entry + ENTRY_LINK_MASK);
    link_saved = word(own + OWN_SAVED_LINK);
    replay = word(own + OWN_REPLAY);
    loud = word(own + OWN_LOUD);
    high_laps = word(own + OWN_HIGH_LAPS);
    normal_laps = word(own + OWN_NORMAL_LAPS);
    dirty = word(own + OWN_DIRTY);
    since = word(own + OWN_SINCE);
    turn_of = word(own + OWN_TURN);
    bound = word(region + CONTROL_STARVATION_BOUND);
    version = word(region + TELEMETRY_VERSION);
    handled = word(region + TELEMETRY_HANDLED);
    failed = word(region + TELEMETRY_FAILED);
    sent = word(region + TELEMETRY_SENT);
    clock_low = word(region + TELEMETRY_CLOCK);
    clock_high = word(region + TELEMETRY_CLOCK + 1u);
}

// Whether the kernel has anything to look at, before it is entered: its requests and its rings.
fn stirs(number: u32) -> bool {
    let entry = DIRECTORY_ENTRIES + number * ENTRY_WORDS;
    let at = word(entry + ENTRY_REGION);
    if (word(at + CONTROL_REQUEST) != word(at + CONTROL_ACKNOWLEDGED)) {
        return true;
    }
    if (word(entry + ENTRY_FED) != 0u) {
        let mine = word(entry + ENTRY_OWN);
        if (word(mine + OWN_LINK_HEAD) != word(mine + OWN_LINK_TAIL)) {
            return true;
        }
    }
    let mask = word(at + CONTROL_IN_MASK);
    let stride = word(at + CONTROL_IN_STRIDE);
    let first = word(at + CONTROL_HIGH_HEAD);
    if (word(at + word(at + CONTROL_HIGH_FIRST) + (first & mask) * stride) == first + 1u) {
        return true;
    }
    let second = word(at + CONTROL_NORMAL_HEAD);
    if (word(at + word(at + CONTROL_NORMAL_FIRST) + (second & mask) * stride) == second + 1u) {
        return true;
    }
    return word(at + CONTROL_STATUS) == STATUS_DRAINING;
}

// Copies the state beside itself, with what the kernel had done by then: to where the last checkpoint but one was, and the
// last one stays what it is until this one is complete.
fn checkpoint() {
    let version = word(own + OWN_SAVED_VERSION) + 2u;
    let which = (version / 2u) & 1u;
    let words = state_words(handler);
    let copy = state_at + words * (1u + which);
    for (var i = 0u; i < words; i++) {
        put(copy + i, word(state_at + i));
    }
    spent += words;
    let saved = own + OWN_SAVED + which * SAVED_WORDS;
    put(saved + SAVED_HANDLED, word(region + TELEMETRY_HANDLED));
    put(saved + SAVED_HANDLED + 1u, word(region + TELEMETRY_HANDLED + 1u));
    put(saved + SAVED_CLOCK, clock_low);
    put(saved + SAVED_CLOCK + 1u, clock_high);
    put(saved + SAVED_HIGH, high);
    put(saved + SAVED_NORMAL, normal);
    put(saved + SAVED_LINK, link_head);
    order();
    put(own + OWN_SAVED_VERSION, version);
    order();
    // Only now is there room for others.
    link_saved = link_head;
    put(own + OWN_SAVED_LINK, link_head);
    since = 0u;
    put(own + OWN_SINCE, 0u);
    put(region + TELEMETRY_CHECKPOINTS, word(region + TELEMETRY_CHECKPOINTS) + 1u);
}

// Whether the ring that others feed is half full of what the last checkpoint does not contain.
fn keeps_much() -> bool {
    return link_head - link_saved > link_mask >> 1u;
}

// The host wants something.
fn obey(asked: u32) {
    order();
    request = asked;
    let wanted = word(region + CONTROL_CHECKPOINT_WANTED);
    if (wanted != word(region + CONTROL_CHECKPOINT_MADE)) {
        checkpoint();
        order();
        put(region + CONTROL_CHECKPOINT_MADE, wanted);
    }
    var next = status;
    switch (word(region + CONTROL_COMMAND)) {
        case COMMAND_ACTIVATE: { next = STATUS_ACTIVE; }
        case COMMAND_PAUSE: { next = STATUS_PAUSED; }
        case COMMAND_DRAIN: { next = STATUS_DRAINING; }
        case COMMAND_TERMINATE: { next = STATUS_TERMINATED; }
        default: {}
    }
    if (next != status && status != STATUS_TERMINATED && status != STATUS_FAILED) {
        status = next;
        order();
        put(region + CONTROL_STATUS, next);
    }
    put(region + CONTROL_ACKNOWLEDGED, asked);
}

// Whether each kernel that this one feeds has room, or can be passed over.
fn links_have_room() -> bool {
    for (var i = 0u; i < links; i++) {
        spent += 1u;
        let link = own + OWN_LINKS + i * LINK_WORDS;
        let entry = DIRECTORY_ENTRIES + word(link) * ENTRY_WORDS;
        let how = word(link + LINK_HOW);
        if (how == LINK_WAITS) {
            return false;
        }
        if (how == LINK_LOSSLESS && is_full(entry, word(link + LINK_BEFORE))) {
            if (takes_messages(entry)) {
                return false;
            }
        }
    }
    return true;
}

// Whether a kernel's ring for others has no room behind so many more. What its last checkpoint does not contain may be needed
// again.
fn is_full(entry: u32, more: u32) -> bool {
    let to = word(entry + ENTRY_OWN);
    let kept = select(OWN_LINK_HEAD, OWN_SAVED_LINK, word(entry + ENTRY_CHECKPOINT_EVERY) != 0u);
    return word(to + OWN_LINK_TAIL) + more - word(to + kept) > word(entry + ENTRY_LINK_MASK);
}

fn takes_messages(entry: u32) -> bool {
    let is = word(word(entry + ENTRY_REGION) + CONTROL_STATUS);
    return is != STATUS_DRAINING && is != STATUS_TERMINATED && is != STATUS_FAILED;
}

// Puts an answer into the rings of the kernels that this one feeds, after it has written down which and where: so that the
// host can finish it when the device is lost in between. `head` is the word that says how far this kernel is, and `next`
// what it will say.
fn feed(source: u32, head: u32, next: u32) {
    let words = (reply_length(handler) + 3u) / 4u;
    for (var n = 0u; n < 2u * links; n++) {
        spent += words + 2u;
        let i = n % links;
        let link = own + OWN_LINKS + i * LINK_WORDS;
        let entry = DIRECTORY_ENTRIES + word(link) * ENTRY_WORDS;
        let to = word(entry + ENTRY_OWN);
        let tail = word(to + OWN_LINK_TAIL);
        if (n < links) {
            // If this one has room, those before it that lead there had, too.
            let more = word(link + LINK_BEFORE);
            let passed = word(link + LINK_HOW) == LINK_PASSED || !takes_messages(entry) || is_full(entry, more);
            put(link + LINK_FEEDS, select(1u, 0u, passed));
            put(link + LINK_AT, tail + more);
            if (n + 1u == links) {
                put(own + OWN_FEEDING_HEAD, head);
                put(own + OWN_FEEDING_NEXT, next);
                order();
                put(own + OWN_FEEDING, 1u);
                order();
            }
        } else if (word(link + LINK_FEEDS) == 0u) {
            count(link + LINK_DROPPED);
            count(region + TELEMETRY_DROPPED);
        } else {
            let stride = word(word(entry + ENTRY_REGION) + CONTROL_IN_STRIDE);
            let slot = word(entry + ENTRY_LINK_FIRST) + (tail & word(entry + ENTRY_LINK_MASK)) * stride;
            put(slot + SLOT_TYPE, reply_type(handler));
            put(slot + SLOT_LENGTH, reply_length(handler));
            put(slot + SLOT_FLAGS, 1u);
            put(slot + SLOT_CLOCK, clock_low);
            put(slot + SLOT_CLOCK + 1u, clock_high);
            for (var j = 0u; j < words; j++) {
                put(slot + SLOT_PAYLOAD + j, word(source + j));
            }
            order();
            put(to + OWN_LINK_TAIL, tail + 1u);
            count(region + TELEMETRY_SENT);
        }
    }
    order();
    put(head, next);
    order();
    put(own + OWN_FEEDING, 0u);
}

// Ends a message that is no ordinary one: nothing is in its slot, or it failed. Says so to who waits.
fn end_oddly(slot: u32, marks: u32, code: u32, id_low: u32, id_high: u32, link_next: u32) {
    if ((marks & FLAG_VOID) != 0u) {
        return;
    }
    let ask = (marks & FLAG_ASK) != 0u;
    clock_low += 1u;
    if (clock_low == 0u) {
        clock_high += 1u;
    }
    failed += 1u;
    if (failed == 0u) {
        put(region + TELEMETRY_FAILED + 1u, word(region + TELEMETRY_FAILED + 1u) + 1u);
    }
    put(region + TELEMETRY_VERSION, version + 1u);
    order();
    put(region + TELEMETRY_BUSY, 0u);
    put(region + TELEMETRY_FAILED, failed);
    put(region + TELEMETRY_CLOCK, clock_low);
    put(region + TELEMETRY_CLOCK + 1u, clock_high);
    order();
    version += 2u;
    put(region + TELEMETRY_VERSION, version);
    if ((ask || answers_all(handler)) && (marks & FLAG_SILENT) == 0u) {
        let answer = out_first + (out & out_mask) * out_stride;
        put(answer + SLOT_TYPE, 0u);
        put(answer + SLOT_LENGTH, 0u);
        put(answer + SLOT_FLAGS, FLAG_FAILED);
        put(answer + SLOT_BUFFER, code);
        put(answer + SLOT_ID, id_low);
        put(answer + SLOT_ID + 1u, link_next);
        put(answer + SLOT_CORRELATION, select(0u, id_low, ask));
        put(answer + SLOT_CORRELATION + 1u, select(0u, id_high, ask));
        put(answer + SLOT_CLOCK, clock_low);
        put(answer + SLOT_CLOCK + 1u, clock_high);
        order();
        out += 1u;
        put(answer, out);
        put(region + CONTROL_OUT_TAIL, out);
        dirty = out_mask + 1u;
    }
}

// Serves kernels until the lease is over.
fn lease() {
    if (word(DIRECTORY_STOP) == STOP_NOW) {
        return;
    }
    let kernels = word(DIRECTORY_KERNELS);
    if (kernels == 0u) {
        return;
    }
    let budget = word(DIRECTORY_BUDGET);
    var number = word(DIRECTORY_NEXT) % kernels;
    var idle = 0u;
    spent = 0u;
    starved = false;
    fresh = true;
    put(DIRECTORY_LEASES, word(DIRECTORY_LEASES) + 1u);
    put(DIRECTORY_RUNNING, 1u);
    loop {
        spent += OUTER_TURNS;
        var stop = word(DIRECTORY_STOP);

        // Whose turn it is: the next that has anything to look at.
        if (kernels > 1u) {
            var passed = 0u;
            loop {
                spent += 1u;
                passed += 1u;
                number += 1u;
                if (number >= kernels) {
                    number = 0u;
                }
                if (stirs(number) || spent > budget) {
                    break;
                }
                if (passed >= kernels) {
                    passed = 0u;
                    fresh = false;
                    stop = word(DIRECTORY_STOP);
                    if (stop != STOP_NEVER) {
                        break;
                    }
                }
            }
        }
        enter(number);
        // The head of an answer is always the same, except where an error was the last lap's.
        var room = true;
        if (dirty != 0u) {
            let next = out_first + (out & out_mask) * out_stride;
            room = word(next) == out;
            if (room) {
                put(next + SLOT_TYPE, reply_type(handler));
                put(next + SLOT_LENGTH, reply_length(handler));
                put(next + SLOT_FLAGS, 0u);
                put(next + SLOT_BUFFER, 0u);
            }
        }
        var busy = false;
        var on = false;
        var odd = false;
        var rare = 0u;
        var slot = 0u;
        var marks = 0u;
        var code = FAULT_NONE;
        var first = false;
        var from_link = false;
        var id_low = 0u;
        var id_high = 0u;
        var answer = 0u;
        var turns = 0u;
        var head = 0u;
        var next = 0u;
        if (links > 0u) {
            room = room && links_have_room();
        }
        let patience = select(KERNEL_POLLS, budget, kernels == 1u);
        let most = word(DIRECTORY_ENTRIES + number * ENTRY_WORDS + ENTRY_TURN);
        let awake = status == STATUS_ACTIVE || status == STATUS_DRAINING;

        // Its messages.
        loop {
            let high_at = high_first + (high & in_mask) * in_stride;
            let normal_at = normal_first + (normal & in_mask) * in_stride;
            answer = out_first + (out & out_mask) * out_stride;
            var urgent = false;
            var usual = false;
            var linked = false;
            var free = false;
            var asked = request;
            var polls = 0u;
            // Several looks in a turn, because turns are what a lease is made of; what is most urgent last.
            loop {
                spent += 1u;
                polls += 1u;
                asked = word(region + CONTROL_REQUEST);
                stop = word(DIRECTORY_STOP);
                free = word(answer) == out;
                linked = fed != 0u && link_head != word(own + OWN_LINK_TAIL);
                urgent = word(high_at) == high + 1u;
                usual = word(normal_at) == normal + 1u;
                if (!urgent && !usual) {
                    usual = word(normal_at) == normal + 1u;
                }
                if (!urgent && !usual) {
                    usual = word(normal_at) == normal + 1u;
                }
                if (replay != 0u) {
                    urgent = false;
                    usual = false;
                }
                if (((awake || replay > loud) && (urgent || usual || linked)) || asked != request || stop != STOP_NEVER) {
                    break;
                }
                if (polls >= patience || spent > budget) {
                    break;
                }
            }
            spent += MIDDLE_TURNS;
            fresh = fresh && polls == 1u;
            let others = usual || linked;
            // What was handled before the device was lost needs no room for answers, and is handled in any case.
            let quiet = replay > loud;
            if (asked != request || stop == STOP_NOW || !((awake || quiet) && (urgent || others)) || !(room || quiet)
                || !free) {
                break;
            }

            // Urgent ones first, but not for ever; then those of the host and those of other kernels in turn.
            first = urgent && !(others && burst >= bound);
            from_link = !first && linked && (!usual || turn_of != 0u);
            slot = select(normal_at, high_at, first);
            if (from_link) {
                slot = link_first + (link_head & link_mask) * in_stride;
            }
            // What the host called it follows from where it lies.
            let position = select(normal, high, first);
            id_low = ((position << 1u) | select(0u, 1u, first)) + 1u;
            id_high = (select(normal_laps, high_laps, first) << 1u) | (position >> 31u);
            id_high += select(0u, 1u, id_low == 0u);
            order();
            marks = word(slot + SLOT_FLAGS);
            let sent_low = word(slot + SLOT_CLOCK);
            let sent_high = word(slot + SLOT_CLOCK + 1u);
            // Later than the message, if what that says can be believed, and than the last one.
            if (sent_high > clock_high && sent_high <= FARTHEST) {
                clock_low = sent_low;
                clock_high = sent_high;
                rare |= 8u;
            } else if (sent_high == clock_high) {
                clock_low = max(clock_low, sent_low);
            }
            if (clock_low == 0xffffffffu) {
                clock_low = 0u;
                clock_high += 1u;
                rare |= 8u;
            }
            odd = (marks & (FLAG_VOID | FLAG_ATTACHED)) != 0u;
            if (odd || rare != 0u) {
                code = FAULT_NO_PAYLOAD;
                break;
            }
            if (LOOPS) {
                put(region + TELEMETRY_BUSY, 1u);
            }
            code = serve(slot, answer + SLOT_PAYLOAD);
            if (starved) {
                break;
            }
            fresh = false;
            if (code != FAULT_NONE) {
                odd = true;
                break;
            }
            let ask = (marks & FLAG_ASK) != 0u;
            let answers = (ask || answers_all(handler)) && (marks & FLAG_SILENT) == 0u;
            on = answers && !ask && links > 0u;
            clock_low += 1u;
            handled += 1u;
            rare |= select(0u, 1u, handled == 0u);
            let publishes = answers && !on;
            var dirty_after = dirty;
            // Who has the answer and looks at the telemetry finds it odd, and waits for the rest: so the answer need not.
            put(region + TELEMETRY_VERSION, version + 1u);
            if (publishes) {
                put(answer + SLOT_ID, id_low); // of the message it answers, also if nobody asked
                put(answer + SLOT_ID + 1u, select(0u, link_head + 1u, from_link));
                put(answer + SLOT_CORRELATION, select(0u, id_low, ask));
                put(answer + SLOT_CORRELATION + 1u, select(0u, id_high, ask));
                put(answer + SLOT_CLOCK, clock_low);
                put(answer + SLOT_CLOCK + 1u, clock_high);
                order();
                out += 1u;
                put(answer, out);
                put(region + CONTROL_OUT_TAIL, out);
                sent += 1u;
                rare |= select(0u, 4u, sent == 0u);
                dirty_after = max(dirty, 1u) - 1u;
            }
            if (LOOPS) {
                put(region + TELEMETRY_BUSY, 0u);
            }
            put(region + TELEMETRY_HANDLED, handled);
            put(region + TELEMETRY_CLOCK, clock_low);
            put(region + TELEMETRY_SENT, sent);
            order();
            version += 2u;
            put(region + TELEMETRY_VERSION, version);
            // The slot is free again; that of a link has no sequence, and nobody minds.
            next = select(position, link_head, from_link) + 1u;
            head = select(region + CONTROL_NORMAL_HEAD, region + CONTROL_HIGH_HEAD, first);
            head = select(head, own + OWN_LINK_HEAD, from_link);
            if (!on) {
                put(slot, next + in_mask);
                put(head, next);
            }
            if (from_link) {
                link_head = next;
                replay = max(replay, 1u) - 1u;
                put(own + OWN_REPLAY, replay);
                turn_of = 0u;
            } else if (first) {
                high = next;
            } else {
                normal = next;
                turn_of = 1u;
            }
            rare |= select(0u, 16u, next == 0u);
            burst = select(0u, burst + 1u, first && others);
            busy = true;
            since += 1u;
            turns += 1u;
            let cleaning = dirty != 0u;
            dirty = dirty_after;
            if (on || rare != 0u || cleaning || (every != 0u && (since >= every || keeps_much())) || spent > budget
                || (kernels > 1u && turns >= most)) {
                break;
            }
        }

        // What happens rarely, or only to some kernels.
        if (odd) {
            end_oddly(slot, marks, code, id_low, id_high, select(0u, link_head + 1u, from_link));
            next = select(select(normal, high, first), link_head, from_link) + 1u;
            put(slot, next + in_mask);
            head = select(region + CONTROL_NORMAL_HEAD, region + CONTROL_HIGH_HEAD, first);
            put(select(head, own + OWN_LINK_HEAD, from_link), next);
            high = select(high, next, first);
            normal = select(next, normal, first || from_link);
            link_head = select(link_head, next, from_link);
            if (from_link) {
                replay = max(replay, 1u) - 1u;
                put(own + OWN_REPLAY, replay);
            }
            rare |= select(0u, 16u, next == 0u);
            burst = 0u;
            busy = true;
            since += 1u;
        }
        if (rare != 0u) {
            // Counts that began anew have one more above them.
            if ((rare & 1u) != 0u) {
                put(region + TELEMETRY_HANDLED + 1u, word(region + TELEMETRY_HANDLED + 1u) + 1u);
            }
            if ((rare & 4u) != 0u) {
                put(region + TELEMETRY_SENT + 1u, word(region + TELEMETRY_SENT + 1u) + 1u);
            }
            if ((rare & 8u) != 0u) {
                put(region + TELEMETRY_VERSION, version + 1u);
                order();
                put(region + TELEMETRY_CLOCK, clock_low);
                put(region + TELEMETRY_CLOCK + 1u, clock_high);
                order();
                version += 2u;
                put(region + TELEMETRY_VERSION, version);
            }
            if ((rare & 16u) != 0u && !from_link) {
                let laps = own + select(OWN_NORMAL_LAPS, OWN_HIGH_LAPS, first);
                put(laps, word(laps) + 1u);
            }
            busy = true;
        }
        if (on) {
            put(region + TELEMETRY_VERSION, version + 1u);
            order();
            feed(answer + SLOT_PAYLOAD, head, next);
            put(slot, next + in_mask);
            order();
            version += 2u;
            put(region + TELEMETRY_VERSION, version);
        }
        if (busy) {
            put(region + CONTROL_BURST, burst);
            put(own + OWN_SINCE, since);
            put(own + OWN_TURN, turn_of);
            put(own + OWN_DIRTY, dirty);
            if (every != 0u && (since >= every || keeps_much())) {
                checkpoint();
            }
        }
        let asked = word(region + CONTROL_REQUEST);
        if (asked != request) {
            obey(asked);
            busy = true;
        }
        if (status == STATUS_DRAINING) {
            // All that was sent before is handled, also by other kernels.
            let over = high == word(region + CONTROL_DRAIN_HIGH) && normal == word(region + CONTROL_DRAIN_NORMAL);
            if (over && word(own + OWN_LINK_HEAD) == word(own + OWN_LINK_TAIL)) {
                status = STATUS_TERMINATED;
                order();
                put(region + CONTROL_STATUS, status);
                busy = true;
            }
        }
        idle = select(idle + 1u, 0u, busy);
        stop = word(DIRECTORY_STOP);
        if (starved || spent > budget || stop == STOP_NOW || (stop == STOP_IDLE && idle > kernels)) {
            break;
        }
    }
    put(DIRECTORY_NEXT, select(number, number + kernels - 1u, starved));
    put(DIRECTORY_RUNNING, 0u);
}
