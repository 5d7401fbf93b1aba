//! `inarch disk reg`: reads the registry of a Windows machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{SyncSender, sync_channel};

use anyhow::anyhow;
use clap::Args;
use inarch_jobs::shown;
use inarch_jobs::windows_registry::{
    FoundKey, HEAD, HiveError, RegistryRequest, Shown, Value, Visited, export_key, read, type_name,
};
use serde_json::json;

use crate::disk_options::{DiskOptions, FormatOption};
use crate::output::{answer, answer_with, complain};

/// Options of `inarch disk reg`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk reg guest.img 'HKLM\\SYSTEM\\CurrentControlSet\\Services\\Tcpip\\Parameters' Hostname
  inarch disk reg guest.qcow2:2 'HKLM\\SOFTWARE\\Microsoft\\Windows NT\\CurrentVersion'
  inarch disk reg NTUSER.DAT 'Software\\Microsoft'
  inarch disk reg /mnt 'HKU\\alice\\Environment'
  inarch disk reg --export SYSTEM 'HKLM\\SYSTEM' > system.reg

Changes that are only in the hive's logs yet are read from there. Nothing is written to any of the files.")]
pub struct RegistryArguments {
    /// A hive, the directory of a Windows system, a disk image, or a volume of one
    #[arg(value_name = "IMAGE-OR-HIVE")]
    pub source: PathBuf,

    /// The key; in a hive, its path may begin at the hive's root
    #[arg(id = "registry_key", value_name = "KEY", default_value = "")]
    pub key: String,

    /// Print this value alone; '' is the key's default value
    #[arg(conflicts_with_all = ["export", "json"])]
    pub value: Option<String>,

    /// A transaction log of the hive, instead of those beside it
    #[arg(long, value_name = "FILE")]
    pub log: Vec<PathBuf>,

    #[command(flatten)]
    pub format: FormatOption,

    /// What the image needs beside itself.
    #[command(flatten)]
    pub disk: DiskOptions,

    /// Print the key and all below it as a registry file, in UTF-16 as Windows does
    #[arg(long, conflicts_with = "json")]
    pub export: bool,

    /// Export in UTF-8
    #[arg(long, requires = "export", conflicts_with = "json")]
    pub utf8: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads a registry.
pub fn run(arguments: &RegistryArguments) -> anyhow::Result<ExitCode> {
    let RegistryArguments { source, key, log, format, disk, .. } = arguments;
    let needs = disk.needs(*format)?;
    let request = RegistryRequest { source: source.clone(), needs, key: key.clone(), logs: log.clone() };
    if arguments.export {
        return export(&request, arguments.utf8);
    }
    let name = arguments.value.as_deref();
    let (notes, text) = read(
        &request,
        |found| {
            let text = match name {
                Some(name) => one(&found, name)?,
                None => Some(if arguments.json { as_json(&found)? } else { table(&found)? }),
            };
            Ok((notes(&found), text))
        },
        || {},
    )?;
    notes.iter().for_each(complain);
    let text = text.ok_or_else(|| {
        let key = &request.key;
        anyhow!("{}: the key {key:?} has no value {:?}", shown(&request.source), name.unwrap_or_default())
    })?;
    answer(text)?;
    Ok(ExitCode::SUCCESS)
}

/// What the user should know of a hive.
fn notes(found: &FoundKey<'_>) -> Vec<String> {
    let file = shown(&found.file);
    found.hive.notes().iter().map(|note| format!("{file}: {note}")).collect()
}

/// The value as a line, or more if it has several.
fn one(found: &FoundKey<'_>, name: &str) -> Result<Option<String>, HiveError> {
    let values = found.hive.values(&found.key)?;
    let Some(value) = values.iter().find(|value| value.name.is(name)) else { return Ok(None) };
    Ok(Some(format!("{}\n", Shown::new(value.kind, found.hive.data(value)?))))
}

fn kind(value: &Value) -> String {
    type_name(value.kind).map_or_else(|| format!("{:#x}", value.kind), str::to_owned)
}

/// Text that is one line, and does nothing to a terminal.
fn line(text: &str) -> String {
    shown(text.as_ref())
}

/// A text with its type: keys first, as in a directory.
fn table(found: &FoundKey<'_>) -> Result<String, HiveError> {
    let within = || if found.within.is_empty() { "\\".to_owned() } else { found.within.join("\\") };
    let mut rows = Vec::new();
    for key in found.hive.subkeys(&found.key)? {
        rows.push([line(&key.name.to_string()), "key".to_owned(), String::new()]);
    }
    for (value, data) in found.hive.values_with_data(&found.key)? {
        let data = match Shown::new(value.kind, data) {
            Shown::Texts(texts) => texts.iter().map(|text| line(text)).collect::<Vec<_>>().join(", "),
            Shown::Number(number) => format!("{number} ({number:#x})"),
            Shown::Bytes(bytes) if bytes.len() > 32 => {
                let start = Shown::Bytes(bytes.iter().take(32).copied().collect());
                format!("{start}... ({} bytes)", bytes.len())
            }
            other => line(&other.to_string()),
        };
        let name = if value.name.is_empty() { "(Default)".to_owned() } else { line(&value.name.to_string()) };
        rows.push([name, kind(&value), data]);
    }
    rows.insert(0, ["NAME", "TYPE", "DATA"].map(str::to_owned));
    let width = |column: usize| rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0);
    let (name_width, kind_width) = (width(0).min(60), width(1));
    let mut text = format!("{}\n", line(&found.path.clone().unwrap_or_else(within)));
    for [name, kind, data] in &rows {
        text += format!("{name:<name_width$}  {kind:<kind_width$}  {data}").trim_end();
        text.push('\n');
    }
    Ok(text)
}

fn as_json(found: &FoundKey<'_>) -> Result<String, HiveError> {
    let mut values = Vec::new();
    for (value, data) in found.hive.values_with_data(&found.key)? {
        let data = match Shown::new(value.kind, data) {
            Shown::Text(text) => json!(text),
            Shown::Texts(texts) => json!(texts),
            Shown::Number(number) => json!(number),
            bytes @ Shown::Bytes(_) => json!(bytes.to_string()),
        };
        values.push(json!({ "name": value.name.to_string(), "type": kind(&value), "size": value.size, "data": data }));
    }
    let subkeys = found.hive.subkeys(&found.key)?;
    let subkeys: Vec<_> = subkeys.iter().map(|key| key.name.to_string()).collect();
    let path = found.path.clone().unwrap_or_else(|| found.within.join("\\"));
    let told = json!({ "path": path, "written": found.key.written, "subkeys": subkeys, "values": values });
    Ok(format!("{told:#}\n"))
}

/// The confined thread makes the text of one key after the other, and this one prints it.
fn export(request: &RegistryRequest, utf8: bool) -> anyhow::Result<ExitCode> {
    let (texts, made) = sync_channel(64);
    let mut printed = Ok(());
    let print = || {
        printed = answer_with(move |out| {
            made.into_iter().try_for_each(|text: Vec<u16>| match utf8 {
                true => out.write_all(String::from_utf16_lossy(&text).as_bytes()),
                false => out.write_all(&text.iter().flat_map(|unit| unit.to_le_bytes()).collect::<Vec<_>>()),
            })
        });
    };
    let exported = read(request, |found| every_key(&found, utf8, &texts_of(texts)), print);
    let (above_known, notes) = exported?;
    printed?;
    notes.iter().for_each(complain);
    match above_known {
        true => Ok(ExitCode::SUCCESS),
        false => Err(anyhow!(
            "{}: a registry file needs full paths, and the hive may belong anywhere; begin the key with where it does: HKLM\\NAME, HKCU",
            shown(&request.source)
        )),
    }
}

/// Sends text to the thread that prints. Returns false once that thread has stopped reading.
fn texts_of(texts: SyncSender<Vec<u16>>) -> impl Fn(Vec<u16>) -> bool {
    move |text| texts.send(text).is_ok()
}

fn every_key(
    found: &FoundKey<'_>,
    utf8: bool,
    send: &dyn Fn(Vec<u16>) -> bool,
) -> Result<(bool, Vec<String>), HiveError> {
    let mut notes = notes(found);
    let Some(above) = &found.path else { return Ok((false, notes)) };
    let mark = if utf8 { "" } else { "\u{feff}" };
    let mut goes_on = send(format!("{mark}{HEAD}").encode_utf16().collect());
    let mut walk = found.hive.walk(found.key.clone());
    while goes_on && let Some(visited) = walk.next_key()? {
        goes_on = send(exported(above, &visited, &found.file, &mut notes));
    }
    Ok((true, notes))
}

fn exported(above: &str, visited: &Visited, file: &Path, notes: &mut Vec<String>) -> Vec<u16> {
    let why = "its name has a line break, a NUL or half a character; --json prints it";
    let mut lost = |what| notes.push(format!("{}: {what} is left out: {why}", shown(file)));
    export_key(above, visited, &mut lost)
}
