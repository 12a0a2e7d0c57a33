//! Names of the squares of a board.

/// Column and row, from 0, of a square with a name such as `h8`: a letter for its column, in either case, and a number for its
/// row, without a sign and without a leading zero. `None` outside of a board of this size.
#[must_use]
pub fn square(name: &str, size: u8) -> Option<(u8, u8)> {
    let (column, row) = name.split_at_checked(1)?;
    let column = column.bytes().next()?.to_ascii_lowercase().checked_sub(b'a')?;
    let row: u8 = row.parse().ok().filter(|number: &u8| number.to_string() == row)?;
    let row = row.checked_sub(1)?;
    (column < size && row < size).then_some((column, row))
}
