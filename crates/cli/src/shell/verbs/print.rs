//! Answers as guestfish prints them.

use std::fmt::Display;

use super::Call;

/// The fields of an answer.
pub type Fields = Vec<(&'static str, String)>;

/// Prints `name: value` lines.
pub fn fields(call: &mut Call<'_>, fields: &Fields) -> anyhow::Result<()> {
    fields.iter().try_for_each(|(name, value)| call.line(format_args!("{name}: {value}")))
}

/// Prints a list of answers, each with its number and in braces.
pub fn list(call: &mut Call<'_>, all: &[Fields]) -> anyhow::Result<()> {
    for (number, one) in all.iter().enumerate() {
        call.line(format_args!("[{number}] = {{"))?;
        one.iter().try_for_each(|(name, value)| call.line(format_args!("  {name}: {value}")))?;
        call.line("}")?;
    }
    Ok(())
}

/// Prints a line for each.
pub fn lines<T: Display>(call: &mut Call<'_>, all: impl IntoIterator<Item = T>) -> anyhow::Result<()> {
    all.into_iter().try_for_each(|one| call.line(one))
}
