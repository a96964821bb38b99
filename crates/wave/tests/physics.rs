//! Whether it is sound: against exact solutions, and for what must not be lost.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::f64::consts::PI;

use millrace_wave::{Boundary, Engine, PerStep, Reference, Resident, Room, Setup, Source, State};

/// All engines that need no GPU. The others are compared with them in `engines.rs`.
fn engines(room: &Room) -> [Box<dyn Engine>; 3] {
    let device = millrace::runtime().open("cpu").unwrap();
    [
        Box::new(Reference::new(room.clone()).unwrap()),
        Box::new(PerStep::on(&device, room.clone()).unwrap()),
        Box::new(Resident::on(&device, room.clone()).unwrap()),
    ]
}

/// A standing wave of a room with rigid walls, `m` half waves long in each direction, when `phase` is its cosine's.
fn mode(size: [u32; 3], m: [u32; 3], phase: f64) -> Vec<f32> {
    let along = |axis: usize, at: u32| (PI * f64::from(m[axis]) * (f64::from(at) + 0.5) / f64::from(size[axis])).cos();
    let mut field = Vec::new();
    for z in 0..size[2] {
        for y in 0..size[1] {
            for x in 0..size[0] {
                field.push((phase.cos() * along(0, x) * along(1, y) * along(2, z)) as f32);
            }
        }
    }
    field
}

/// How far a mode turns in a step of the grid: `sin²(ω dt/2) = λ² Σ sin²(k h/2)`.
fn turn_on_the_grid(room: &Room, m: [u32; 3]) -> f64 {
    let sum: f64 =
        (0..3).map(|axis| (PI * f64::from(m[axis]) / f64::from(room.size()[axis]) / 2.0).sin().powi(2)).sum();
    2.0 * (room.courant() * sum.sqrt()).asin()
}

/// How far it turns in a step's time in air: `ω = c |k|`.
fn turn_in_air(room: &Room, m: [u32; 3]) -> f64 {
    let squares = (0..3).map(|axis| (PI * f64::from(m[axis]) / f64::from(room.size()[axis])).powi(2));
    room.courant() * squares.sum::<f64>().sqrt()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
}

#[test]
fn standing_waves_follow_the_exact_solution_of_the_grid() {
    for (size, m) in [([24, 20, 16], [2, 1, 3]), ([17, 9, 33], [0, 4, 1]), ([40, 1, 1], [7, 0, 0])] {
        let room = Setup::new(size).build().unwrap();
        let turn = turn_on_the_grid(&room, m);
        for mut engine in engines(&room) {
            engine.load(&State { now: mode(size, m, 0.0), before: mode(size, m, -turn) }).unwrap();
            for steps in [1, 9, 190] {
                engine.step(steps).unwrap();
                let exact = mode(size, m, engine.steps() as f64 * turn);
                let error = largest_difference(&engine.state().unwrap().now, &exact);
                assert!(error < 2e-5, "{}, {size:?}, after {}: {error:e}", engine.name(), engine.steps());
            }
        }
    }
}

/// The error against the wave equation itself, after the same time on a grid of `n` cells on a side.
fn error_in_air(n: u32) -> f64 {
    // Its frequency is such that after these steps it is at zero, where it changes fastest.
    let m = [1, 2, 2];
    let room = Setup::new([n; 3]).build().unwrap();
    let turn = turn_in_air(&room, m);
    let mut engine = Reference::new(room).unwrap();
    engine.load(&State { now: mode([n; 3], m, 0.0), before: mode([n; 3], m, -turn) }).unwrap();
    let steps = u64::from(n);
    engine.step(steps).unwrap();
    largest_difference(&engine.state().unwrap().now, &mode([n; 3], m, steps as f64 * turn))
}

#[test]
fn half_the_cell_is_a_quarter_of_the_error() {
    let errors = [8, 16, 32].map(error_in_air);
    for pair in errors.windows(2) {
        let factor = pair[0] / pair[1];
        assert!((3.5..4.5).contains(&factor), "{errors:?}: a factor of {factor}");
    }
    assert!(errors[2] < 0.02, "{errors:?}");
}

/// Pressures that are as rough as can be.
fn noise(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

#[test]
fn a_closed_room_keeps_its_energy() {
    let size = [20, 24, 18];
    let room = Setup::new(size).obstacles(|[x, y, z]| x / 3 == 2 && y > 5 && z != 9).build().unwrap();
    let calm = Setup::new(size).build().unwrap();
    let rough = State { now: noise(room.cells()), before: noise(room.cells()) };
    let smooth = State { now: mode(size, [1, 1, 1], 0.0), before: mode(size, [1, 1, 1], 0.0) };
    for (room, state) in [(room, rough), (calm, smooth)] {
        for mut engine in engines(&room) {
            engine.load(&state).unwrap();
            let start = engine.energy().unwrap();
            for _ in 0..10 {
                engine.step(100).unwrap();
                let share = engine.energy().unwrap() / start;
                assert!((share - 1.0).abs() < 1e-4, "{}: {share} after {}", engine.name(), engine.steps());
            }
        }
    }
}

#[test]
fn a_closed_room_keeps_what_sources_have_let_in() {
    let sources = [Source::impulse([3, 3, 3], 2.0), Source::sine([9, 4, 2], 0.5, 2000.0)];
    let setup = sources.iter().fold(Setup::new([12, 8, 9]), |setup, &source| setup.source(source));
    let room = setup.obstacle([5, 5, 5]).build().unwrap();
    let dt = room.time_step();
    for mut engine in engines(&room) {
        engine.step(77).unwrap();
        engine.inject([1, 1, 1], -0.75).unwrap();
        engine.step(33).unwrap();
        let sine: f64 = (0..110).map(|n| 0.5 * (2.0 * PI * 2000.0 * f64::from(n) * dt).sin()).sum();
        let sum: f64 = engine.state().unwrap().now.iter().map(|&p| f64::from(p)).sum();
        assert!((sum - (2.0 + sine - 0.75)).abs() < 1e-3, "{}: {sum}", engine.name());
    }
}

/// The energy that is left after a pulse in the middle has had the time to leave the room, as a share of the most there
/// was.
fn share_left(boundary: Boundary) -> f64 {
    let n = 40;
    let source = Source::ricker([n / 2; 3], 1.0, 343.0 / 0.01 / 10.0);
    let room = Setup::new([n; 3]).boundary(boundary).source(source).build().unwrap();
    let mut engine = PerStep::on(&millrace::runtime().open("cpu").unwrap(), room).unwrap();
    // Three periods of ten cells, two steps a cell: the pulse has been made.
    engine.step(60).unwrap();
    let most = engine.energy().unwrap();
    // The way to a corner is √3 · 20 cells; and the pulse is about 15 cells long.
    engine.step(2 * 55).unwrap();
    engine.energy().unwrap() / most
}

#[test]
fn absorbing_walls_absorb_and_reflecting_ones_do_not() {
    let absorbed = share_left(Boundary::Absorbing);
    assert!(absorbed < 0.02, "{absorbed} of the energy is left");
    let reflected = share_left(Boundary::Reflecting);
    assert!((reflected - 1.0).abs() < 1e-3, "{reflected} of the energy is left");
}

#[test]
fn a_plane_wave_that_hits_an_absorbing_wall_head_on_is_gone() {
    // So wide that nothing comes from the sides to the middle in the time that is looked at.
    let size = [30, 84, 84];
    let room = Setup::new(size).boundary(Boundary::Absorbing).build().unwrap();
    let pulse = |x: f64| (-((x - 12.0) / 3.5).powi(2)).exp() as f32;
    let field = |shift: f64| -> Vec<f32> {
        let row: Vec<f32> = (0..30).map(|x| pulse(f64::from(x) - shift)).collect();
        row.repeat(84 * 84)
    };
    let mut engine = PerStep::on(&millrace::runtime().open("cpu").unwrap(), room).unwrap();
    engine.load(&State { now: field(0.0), before: field(-0.5) }).unwrap(); // it goes to the right
    let largest = |engine: &mut PerStep| {
        let middle = engine.plane(42).unwrap()[42 * 30..43 * 30].to_vec();
        middle.iter().fold(0f32, |most, p| most.max(p.abs()))
    };
    engine.step(20).unwrap();
    assert!(largest(&mut engine) > 0.95, "it is on its way");
    engine.step(50).unwrap();
    let left = largest(&mut engine);
    // Of a wave with k·h on this grid (k·h)²·(1 − λ²)/16 comes back, and this pulse's k·h is about 0.4.
    assert!(left < 1e-2, "{left} came back");
}

#[test]
fn with_absorbing_walls_energy_never_grows() {
    let room = Setup::new([12, 10, 14]).boundary(Boundary::Absorbing).obstacle([6, 5, 7]).build().unwrap();
    let mut engine = Reference::new(room.clone()).unwrap();
    engine.load(&State { now: noise(room.cells()), before: noise(room.cells()) }).unwrap();
    let mut last = engine.energy().unwrap();
    for _ in 0..200 {
        engine.step(1).unwrap();
        let energy = engine.energy().unwrap();
        assert!(energy <= last * (1.0 + 1e-6), "{energy} after {last}");
        last = energy;
    }
}

#[test]
fn sound_goes_at_the_speed_of_sound() {
    let source = Source::ricker([8, 30, 30], 1.0, 343.0 / 0.01 / 20.0);
    let room = Setup::new([72, 60, 60]).boundary(Boundary::Absorbing).source(source).build().unwrap();
    let mut engine = PerStep::on(&millrace::runtime().open("cpu").unwrap(), room).unwrap();
    // When the pulse is at its height, 20 and 50 cells away.
    let mut heights = [(0.0, 0); 2];
    for step in 1..=220 {
        engine.step(1).unwrap();
        for (height, x) in heights.iter_mut().zip([28, 58]) {
            let pressure = engine.pressure([x, 30, 30]).unwrap();
            if pressure > height.0 {
                *height = (pressure, step);
            }
        }
    }
    let between = heights[1].1 - heights[0].1;
    assert!((59..=63).contains(&between), "30 cells are 60 steps, it took {between}");
    let spread = heights[0].0 / heights[1].0;
    assert!((spread / 2.5 - 1.0).abs() < 0.1, "5/2 of the distance is 2/5 of the height: {spread}");
}

#[test]
fn obstacles_reflect_and_let_nothing_through() {
    // A wall without a gap across the room.
    let setup = || Setup::new([40, 16, 16]).source(Source::ricker([8, 8, 8], 1.0, 343.0 / 0.01 / 10.0));
    let walled = setup().obstacles(|[x, _, _]| x == 20).build().unwrap();
    for mut engine in engines(&walled) {
        engine.step(300).unwrap();
        let state = engine.state().unwrap();
        let energy = engine.energy().unwrap();
        assert!(energy > 0.0);
        for (at, pressure) in state.now.iter().enumerate().filter(|(at, _)| at % 40 >= 20) {
            assert_eq!(*pressure, 0.0, "{}: something is at x = {}", engine.name(), at % 40);
        }
        // Before the wall all is as in a room that ends there.
        let short =
            Setup::new([20, 16, 16]).source(Source::ricker([8, 8, 8], 1.0, 343.0 / 0.01 / 10.0)).build().unwrap();
        let mut alone = Reference::new(short).unwrap();
        alone.step(300).unwrap();
        let before: Vec<f32> = state.now.chunks(40).flat_map(|row| &row[..20]).copied().collect();
        assert_eq!(before, alone.state().unwrap().now);
        assert!((alone.energy().unwrap() / energy - 1.0).abs() < 1e-9);
    }
}
