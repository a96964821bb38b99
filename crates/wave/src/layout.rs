//! Where cells are in memory: as users see them, and with the margin that kernels need.
//!
//! Kernels work on fields with a margin of one cell all around, which is solid. Solid cells have no pressure, so a
//! kernel adds up all six neighbours without looking what they are, and a byte for every cell says the rest: its *kind*.

use crate::{Cell, Room};

/// The number of a cell without margins.
pub(crate) fn place([nx, ny, _]: [u32; 3], [x, y, z]: Cell) -> usize {
    (z as usize * ny as usize + y as usize) * nx as usize + x as usize
}

/// The bits of a kind that say how many of the six neighbours are open.
pub(crate) const OPEN: u8 = 0b111;
/// How far to the right the number of faces on the room's walls is, of three bits.
pub(crate) const WALLS: u32 = 3;
/// Of the cell in the margin that a row begins with: all cells of the row but the first and the last have six open
/// neighbours, so that nobody has to look at their kinds.
pub(crate) const PLAIN: u8 = 1 << 6;
/// The cell is an obstacle or in the margin.
pub(crate) const SOLID: u8 = 1 << 7;

/// A room's fields with their margin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) size: [u32; 3],
    /// Words from row to row.
    pub(crate) pitch: usize,
    /// Words from plane to plane.
    pub(crate) plane: usize,
    /// Words of the margin before the first cell of a row. The margin after the last is the next row's.
    pub(crate) lead: usize,
}

/// Words of the widest vectors, and of a cache line.
const LINE: usize = 16;

impl Layout {
    pub(crate) fn of(size: [u32; 3]) -> Self {
        let nx = size[0] as usize;
        // Rows that are long enough for it begin with a cache line: loads that cross two take twice as long.
        let lead = if nx < 2 * LINE { 1 } else { LINE };
        let pitch = nx.next_multiple_of(lead) + lead;
        Self { size, pitch, plane: pitch.saturating_mul(size[1] as usize + 2), lead }
    }

    /// Words of a field.
    pub(crate) fn words(&self) -> usize {
        self.plane.saturating_mul(self.size[2] as usize + 2)
    }

    /// The number of a cell.
    pub(crate) fn at(&self, [x, y, z]: Cell) -> usize {
        (z as usize + 1) * self.plane + (y as usize + 1) * self.pitch + self.lead + x as usize
    }

    /// Where rows without margins begin in fields with them, in the order of [`place`].
    pub(crate) fn rows(&self) -> impl Iterator<Item = usize> {
        let [_, ny, nz] = self.size;
        (0..nz).flat_map(move |z| (0..ny).map(move |y| self.at([0, y, z])))
    }

    /// Puts a margin of zeros around a field.
    pub(crate) fn widen(&self, field: &[f32]) -> Vec<f32> {
        let mut wide = vec![0.0; self.words()];
        let nx = self.size[0] as usize;
        for (row, at) in field.chunks_exact(nx).zip(self.rows()) {
            wide[at..at + nx].copy_from_slice(row);
        }
        wide
    }

    /// Puts a margin around a field, without any pressure where the kinds say that a cell is solid.
    pub(crate) fn widen_open(&self, field: &[f32], kinds: &[u8]) -> Vec<f32> {
        let mut wide = self.widen(field);
        let solid = kinds.iter().map(|kind| kind & SOLID != 0);
        wide.iter_mut().zip(solid).filter(|(_, solid)| *solid).for_each(|(pressure, _)| *pressure = 0.0);
        wide
    }

    /// A field, or some planes of it that begin at word `skip`, without the margin around it.
    pub(crate) fn narrow(&self, wide: &[f32], rows: impl Iterator<Item = usize>, skip: usize) -> Vec<f32> {
        let nx = self.size[0] as usize;
        rows.flat_map(|at| &wide[at - skip..at - skip + nx]).copied().collect()
    }

    /// The kind of a cell.
    pub(crate) fn kind(&self, room: &Room, cell: Cell) -> u8 {
        if room.is_solid(cell) {
            return SOLID;
        }
        let (mut open, mut walls) = (0, 0);
        for (axis, up) in [(0, false), (0, true), (1, false), (1, true), (2, false), (2, true)] {
            let beyond = room.beyond(cell, axis, up);
            walls += u8::from(beyond.wall);
            open += u8::from(beyond.neighbour.is_some_and(|neighbour| !room.is_solid(neighbour)));
        }
        open | walls << WALLS
    }

    /// The kinds of all cells, margin included, padded to whole words.
    pub(crate) fn kinds(&self, room: &Room) -> Vec<u8> {
        let mut kinds = vec![SOLID; self.words().next_multiple_of(4)];
        let [nx, ny, nz] = self.size;
        for z in 0..nz {
            for y in 0..ny {
                for x in 0..nx {
                    kinds[self.at([x, y, z])] = self.kind(room, [x, y, z]);
                }
                self.mark_row(&mut kinds, y, z);
            }
        }
        kinds
    }

    /// Notes at the beginning of a row whether it is plain.
    fn mark_row(&self, kinds: &mut [u8], y: u32, z: u32) {
        let (start, nx) = (self.at([0, y, z]), self.size[0] as usize);
        let inner = start + 1..(start + nx).saturating_sub(1).max(start + 1);
        let plain = kinds[inner].iter().all(|&kind| kind == 6);
        kinds[start - 1] = if plain { SOLID | PLAIN } else { SOLID };
    }

    /// Brings the kinds up to date after a cell has become an obstacle or open; gives the ranges of them that changed.
    pub(crate) fn update(&self, room: &Room, kinds: &mut [u8], cell: Cell) -> Vec<std::ops::Range<usize>> {
        let [x, y, z] = cell;
        let around = |at: u32, n: u32| at.saturating_sub(1)..(at + 2).min(n);
        let mut changed = Vec::new();
        for z_near in around(z, self.size[2]) {
            for y_near in around(y, self.size[1]).filter(|&y_near| y_near == y || z_near == z) {
                let near = around(x, self.size[0]);
                for x_near in near.clone() {
                    kinds[self.at([x_near, y_near, z_near])] = self.kind(room, [x_near, y_near, z_near]);
                }
                self.mark_row(kinds, y_near, z_near);
                let start = self.at([0, y_near, z_near]) - 1;
                let cells = self.at([near.start, y_near, z_near])..self.at([near.end - 1, y_near, z_near]) + 1;
                changed.extend([start..start + 1, cells]);
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Setup;

    #[test]
    fn fields_survive_their_margin() {
        let layout = Layout::of([3, 4, 2]);
        let field: Vec<f32> = (0..24).map(|n| n as f32).collect();
        let wide = layout.widen(&field);
        assert_eq!(wide.len(), 4 * 6 * 4);
        assert_eq!(wide[layout.at([2, 3, 1])], 23.0);
        assert_eq!(layout.narrow(&wide, layout.rows(), 0), field);
    }

    #[test]
    fn every_cell_is_surrounded_and_long_rows_begin_with_a_cache_line() {
        for size in [[1, 1, 1], [3, 4, 2], [31, 2, 3], [32, 2, 3], [37, 5, 1], [48, 1, 2]] {
            let layout = Layout::of(size);
            let mut cells: Vec<usize> = layout.rows().flat_map(|at| at..at + size[0] as usize).collect();
            cells.sort_unstable();
            cells.dedup();
            assert_eq!(cells.len() as u32, size.iter().product::<u32>());
            let [nx, ny, nz] = size.map(|n| n - 1);
            let is_cell = |at: usize| cells.binary_search(&at).is_ok();
            for y in 0..=ny {
                for z in 0..=nz {
                    assert!(!is_cell(layout.at([0, y, z]) - 1) && !is_cell(layout.at([nx, y, z]) + 1));
                    assert!(nx < 31 || layout.at([0, y, z]).is_multiple_of(16));
                }
            }
            let (first, last) = (layout.at([0, 0, 0]), layout.at([nx, ny, nz]));
            assert!(first >= layout.plane && last + layout.plane < layout.words());
            assert!(!is_cell(first - layout.pitch) && !is_cell(last + layout.pitch));
            assert!(!is_cell(first - layout.plane) && !is_cell(last + layout.plane));
        }
    }

    #[test]
    fn kinds_say_what_is_around() {
        let room = Setup::new([5, 5, 5]).obstacle([2, 2, 2]).build().unwrap();
        let layout = Layout::of(room.size());
        let kinds = layout.kinds(&room);
        assert_eq!(kinds[layout.at([2, 2, 2])], SOLID);
        assert_eq!(kinds[layout.at([1, 2, 2])], 5);
        assert_eq!(kinds[layout.at([1, 1, 1])], 6);
        assert_eq!(kinds[layout.at([0, 0, 4])], 3 | 3 << WALLS);
        assert_eq!(kinds[layout.at([0, 1, 1]) - 1], SOLID | PLAIN);
        assert_eq!(kinds[layout.at([0, 2, 2]) - 1], SOLID, "an obstacle is in it");
        assert_eq!(kinds[layout.at([0, 1, 2]) - 1], SOLID, "an obstacle is beside it");
        assert_eq!(kinds[layout.at([0, 0, 2]) - 1], SOLID, "a wall is beside it");
    }

    #[test]
    fn kinds_can_be_brought_up_to_date() {
        for cell in [[2, 2, 2], [0, 0, 0], [4, 3, 2], [4, 0, 5]] {
            let mut room = Setup::new([5, 4, 6]).obstacle([1, 1, 1]).build().unwrap();
            let layout = Layout::of(room.size());
            let before = layout.kinds(&room);
            let mut kinds = before.clone();
            for solid in [true, false] {
                assert!(room.set_solid(cell, solid).unwrap());
                let old = kinds.clone();
                let changed = layout.update(&room, &mut kinds, cell);
                assert_eq!(kinds, layout.kinds(&room));
                for at in (0..kinds.len()).filter(|&at| kinds[at] != old[at]) {
                    assert!(changed.iter().any(|range| range.contains(&at)), "{at} is not said to have changed");
                }
            }
            assert_eq!(kinds, before);
        }
    }

    #[test]
    fn a_room_of_one_cell_is_all_walls() {
        let room = Setup::new([1, 1, 1]).build().unwrap();
        let layout = Layout::of(room.size());
        assert_eq!(layout.kinds(&room)[layout.at([0, 0, 0])], 6 << WALLS);
    }
}
