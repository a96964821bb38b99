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
// A handler needs more turns than this lease has left.
var<private> starved: bool;

// The kernel whose turn it is, as its memory says.
var<private> region: u32;
var<private> own: u32;
var<private> handler: u32;
var<private> state_at: u32;
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
var<private> since: u32;
var<private> turn_of: u32;
var<private> bound: u32;
var<private> version: u32;
var<private> clock_low: u32;
var<private> clock_high: u32;

fn word(at: u32) -> u32 {
    return atomicLoad(&arena[at]);
}

fn put(at: u32, value: u32) {
    atomicStore(&arena[at], value);
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
    since = word(own + OWN_SINCE);
    turn_of = word(own + OWN_TURN);
    bound = word(region + CONTROL_STARVATION_BOUND);
    version = word(region + TELEMETRY_VERSION);
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

// Copies the state beside itself, with what the kernel had done by then.
fn checkpoint() {
    let saving = word(own + OWN_SAVED_VERSION);
    put(own + OWN_SAVED_VERSION, saving + 1u);
    order();
    let words = state_words(handler);
    let saved = state_at + words;
    for (var i = 0u; i < words; i++) {
        put(saved + i, word(state_at + i));
    }
    spent += words;
    put(own + OWN_SAVED_HANDLED, word(region + TELEMETRY_HANDLED));
    put(own + OWN_SAVED_HANDLED + 1u, word(region + TELEMETRY_HANDLED + 1u));
    put(own + OWN_SAVED_CLOCK, clock_low);
    put(own + OWN_SAVED_CLOCK + 1u, clock_high);
    put(own + OWN_SAVED_HIGH, high);
    put(own + OWN_SAVED_NORMAL, normal);
    put(own + OWN_SAVED_OUT, out);
    order();
    put(own + OWN_SAVED_VERSION, saving + 2u);
    since = 0u;
    put(own + OWN_SINCE, 0u);
    put(region + TELEMETRY_CHECKPOINTS, word(region + TELEMETRY_CHECKPOINTS) + 1u);
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
        let to = word(entry + ENTRY_OWN);
        let taken = word(to + OWN_LINK_TAIL) - word(to + OWN_LINK_HEAD);
        if (word(link + 1u) == 0u && taken > word(entry + ENTRY_LINK_MASK)) {
            if (takes_messages(entry)) {
                return false;
            }
        }
    }
    return true;
}

fn takes_messages(entry: u32) -> bool {
    let is = word(word(entry + ENTRY_REGION) + CONTROL_STATUS);
    return is != STATUS_DRAINING && is != STATUS_TERMINATED && is != STATUS_FAILED;
}

// Puts an answer into the rings of the kernels that this one feeds.
fn feed(source: u32) {
    let words = (reply_length(handler) + 3u) / 4u;
    for (var i = 0u; i < links; i++) {
        spent += words + 2u;
        let link = own + OWN_LINKS + i * LINK_WORDS;
        let entry = DIRECTORY_ENTRIES + word(link) * ENTRY_WORDS;
        let to = word(entry + ENTRY_OWN);
        let mask = word(entry + ENTRY_LINK_MASK);
        let tail = word(to + OWN_LINK_TAIL);
        if (!takes_messages(entry) || tail - word(to + OWN_LINK_HEAD) > mask) {
            count(link + 2u);
            count(region + TELEMETRY_DROPPED);
        } else {
            let stride = word(word(entry + ENTRY_REGION) + CONTROL_IN_STRIDE);
            let slot = word(entry + ENTRY_LINK_FIRST) + (tail & mask) * stride;
            put(slot + SLOT_TYPE, reply_type(handler));
            put(slot + SLOT_LENGTH, reply_length(handler));
            put(slot + SLOT_FLAGS, 1u);
            put(slot + SLOT_CLOCK, clock_low);
            put(slot + SLOT_CLOCK + 1u, clock_high);
            for (var j = 0u; j < words; j++) {
                put(slot + SLOT_PAYLOAD + j, word(source + j));
            }
            put(to + OWN_LINK_TAIL, tail + 1u);
            count(region + TELEMETRY_SENT);
        }
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
                    stop = word(DIRECTORY_STOP);
                    if (stop != STOP_NEVER) {
                        break;
                    }
                }
            }
        }
        enter(number);
        var busy = false;
        var on = false;
        var answer = 0u;
        var turns = 0u;
        var room = true;
        if (links > 0u) {
            room = links_have_room();
        }
        let patience = select(KERNEL_POLLS, budget, kernels == 1u);
        let most = word(DIRECTORY_ENTRIES + number * ENTRY_WORDS + ENTRY_TURN);
        let awake = status == STATUS_ACTIVE || status == STATUS_DRAINING;

        // Its messages.
        loop {
            let high_at = high_first + (high & in_mask) * in_stride;
            let normal_at = normal_first + (normal & in_mask) * in_stride;
            var urgent = false;
            var usual = false;
            var linked = false;
            var link_head = 0u;
            var asked = request;
            var polls = 0u;
            // Several looks in a turn, because turns are what a lease is made of.
            loop {
                spent += 1u;
                polls += 1u;
                urgent = word(high_at) == high + 1u;
                usual = word(normal_at) == normal + 1u;
                if (!urgent && !usual) {
                    usual = word(normal_at) == normal + 1u;
                }
                if (!urgent && !usual) {
                    usual = word(normal_at) == normal + 1u;
                }
                if (!urgent && !usual) {
                    usual = word(normal_at) == normal + 1u;
                }
                if (fed != 0u) {
                    link_head = word(own + OWN_LINK_HEAD);
                    linked = link_head != word(own + OWN_LINK_TAIL);
                }
                asked = word(region + CONTROL_REQUEST);
                stop = word(DIRECTORY_STOP);
                if ((awake && (urgent || usual || linked)) || asked != request || stop != STOP_NEVER) {
                    break;
                }
                if (polls >= patience || spent > budget) {
                    break;
                }
            }
            spent += MIDDLE_TURNS;
            answer = out_first + (out & out_mask) * out_stride;
            let others = usual || linked;
            let any = awake && (urgent || others);
            if (asked != request || stop == STOP_NOW || !any || !room || word(answer) != out) {
                break;
            }

            // Urgent ones first, but not for ever; then those of the host and those of other kernels in turn.
            let first = urgent && !(others && burst >= bound);
            let from_link = !first && linked && (!usual || turn_of != 0u);
            var slot = normal_at;
            if (first) {
                slot = high_at;
            } else if (from_link) {
                slot = link_first + (link_head & in_mask) * in_stride;
            }
            order();
            let marks = word(slot + SLOT_FLAGS);
            let ask = (marks & FLAG_ASK) != 0u;
            put(region + TELEMETRY_BUSY, 1u);
            var code = FAULT_NO_PAYLOAD;
            if ((marks & FLAG_VOID) != 0u) {
                code = FAULT_NONE;
            } else if ((marks & FLAG_ATTACHED) == 0u) {
                code = serve(slot, answer + SLOT_PAYLOAD);
            }
            if (starved) {
                break;
            }
            busy = true;
            turns += 1u;
            let done = code == FAULT_NONE;
            var answers = (ask || answers_all(handler)) && (marks & FLAG_SILENT) == 0u;
            if ((marks & FLAG_VOID) == 0u) {
                on = answers && !ask && links > 0u && done;
                answers = answers && !on;
                // Later than the message, and than the last one.
                let sent_low = word(slot + SLOT_CLOCK);
                let sent_high = word(slot + SLOT_CLOCK + 1u);
                if (sent_high > clock_high || (sent_high == clock_high && sent_low > clock_low)) {
                    clock_low = sent_low;
                    clock_high = sent_high;
                }
                clock_low += 1u;
                if (clock_low == 0u) {
                    clock_high += 1u;
                }
                put(region + TELEMETRY_VERSION, version + 1u);
                order();
                put(region + TELEMETRY_BUSY, 0u);
                count(select(region + TELEMETRY_FAILED, region + TELEMETRY_HANDLED, done));
                put(region + TELEMETRY_CLOCK, clock_low);
                put(region + TELEMETRY_CLOCK + 1u, clock_high);
                if (answers && done) {
                    count(region + TELEMETRY_SENT);
                }
                order();
                version += 2u;
                put(region + TELEMETRY_VERSION, version);
                since += 1u;
                if (answers) {
                    let id_low = word(slot + SLOT_ID);
                    put(answer + SLOT_TYPE, select(0u, reply_type(handler), done));
                    put(answer + SLOT_LENGTH, select(0u, reply_length(handler), done));
                    put(answer + SLOT_FLAGS, select(FLAG_FAILED, 0u, done));
                    put(answer + SLOT_BUFFER, code);
                    put(answer + SLOT_ID, out + 1u);
                    put(answer + SLOT_ID + 1u, 0u);
                    put(answer + SLOT_CORRELATION, select(0u, id_low, ask));
                    put(answer + SLOT_CORRELATION + 1u, select(0u, word(slot + SLOT_ID + 1u), ask));
                    put(answer + SLOT_CLOCK, clock_low);
                    put(answer + SLOT_CLOCK + 1u, clock_high);
                    put(answer + SLOT_GENERATION, id_low); // which message it answers, also if nobody asked
                    order();
                    out += 1u;
                    put(answer, out);
                    put(region + CONTROL_OUT_TAIL, out);
                }
            }
            let now = select(0u, burst + 1u, first && others);
            if (now != burst) {
                burst = now;
                put(region + CONTROL_BURST, burst);
            }
            if (first) {
                put(slot, high + in_mask + 1u);
                high += 1u;
                put(region + CONTROL_HIGH_HEAD, high);
            } else if (from_link) {
                put(own + OWN_LINK_HEAD, link_head + 1u);
                turn_of = 0u;
            } else {
                put(slot, normal + in_mask + 1u);
                normal += 1u;
                put(region + CONTROL_NORMAL_HEAD, normal);
                turn_of = 1u;
            }
            if (on || (every != 0u && since >= every) || spent > budget || (kernels > 1u && turns >= most)) {
                break;
            }
        }

        // What happens rarely, or only to some kernels.
        if (on) {
            put(region + TELEMETRY_VERSION, version + 1u);
            order();
            feed(answer + SLOT_PAYLOAD);
            order();
            version += 2u;
            put(region + TELEMETRY_VERSION, version);
        }
        if (busy) {
            put(own + OWN_SINCE, since);
            put(own + OWN_TURN, turn_of);
            if (every != 0u && since >= every) {
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
    put(DIRECTORY_NEXT, number);
    put(DIRECTORY_RUNNING, 0u);
}
