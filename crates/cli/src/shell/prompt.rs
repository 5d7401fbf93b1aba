//! The prompt: a line editor with history and completion.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use inarch_jobs::shell::history;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use super::Shell;
use super::complete::complete;
use crate::output::{answer, complain};

/// Guestfish's.
const PROMPT: &str = "><fs> ";
/// The most lines that are remembered.
const REMEMBERED: usize = 1000;

/// What the line editor asks.
struct Asked(Rc<RefCell<Shell>>);

impl Completer for Asked {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = line.get(..pos).unwrap_or(line);
        let (start, found) = complete(&mut self.0.borrow_mut(), before);
        let pairs = found.into_iter().map(|one| Pair { display: one.shown, replacement: one.typed });
        Ok((start, pairs.collect()))
    }
}

impl Hinter for Asked {
    type Hint = String;
}

impl Highlighter for Asked {}
impl Validator for Asked {}
impl Helper for Asked {}

/// Reads lines and runs them until the end. `mounted` are lines about what the command line asked for.
pub fn talk(shell: Shell, mounted: &[String]) -> anyhow::Result<ExitCode> {
    // Ctrl-C ends what a verb does, and a command of this machine as usual; not the shell.
    flag::register(SIGINT, Arc::clone(&shell.interrupted))?;
    let shell = Rc::new(RefCell::new(shell));
    let config = Config::builder().max_history_size(REMEMBERED)?.completion_type(CompletionType::List).build();
    let mut editor: Editor<Asked, FileHistory> = Editor::with_config(config)?;
    editor.set_helper(Some(Asked(Rc::clone(&shell))));
    let history = history::file();
    match &history {
        // An empty file has no history.
        Ok(path) => drop(editor.load_history(path)),
        Err(why) => complain(format_args!("lines are not remembered: {why}")),
    }
    answer("'help' lists the verbs, 'quit' or Ctrl-D ends. Nothing is booted until a verb changes files.\n")?;
    answer(mounted.iter().map(|line| format!("{line}\n")).collect::<String>())?;
    read_lines(&shell, &mut editor, history.ok())
}

/// Lines are remembered at once: a shell may be killed. `history` is where.
fn read_lines(
    shell: &Rc<RefCell<Shell>>,
    editor: &mut Editor<Asked, FileHistory>,
    mut history: Option<PathBuf>,
) -> anyhow::Result<ExitCode> {
    while !shell.borrow().has_ended {
        match editor.readline(PROMPT) {
            Ok(line) => {
                if !line.trim().is_empty() {
                    editor.add_history_entry(&*line)?;
                }
                if let Some(path) = &history
                    && let Err(error) = editor.append_history(path)
                {
                    complain(format_args!("lines are not remembered: {error}"));
                    history = None;
                }
                if let Err(failed) = shell.borrow_mut().run_line(line.as_bytes(), 0) {
                    failed.say(None);
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => {
                answer("\n")?;
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    shell.borrow_mut().session.settle()?;
    Ok(ExitCode::SUCCESS)
}
