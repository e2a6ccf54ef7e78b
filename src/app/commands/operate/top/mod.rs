//! `penstock top`: the tables of a gateway, live on a terminal.

mod screen;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use ratatui::crossterm::event::{self, Event, KeyEventKind, KeyModifiers};
use serde_json::{Value, json};
use tokio::sync::watch;

use self::screen::{KeyPress, Screen};
use super::client::AdminClient;
use super::views::{self, View};
use crate::app::terminal::has_colour;
use crate::cli::watch::TopArgs;

/// Pause between two looks at the keyboard.
const KEY_POLL: Duration = Duration::from_millis(50);
/// Shortest pause between two looks at the gateway.
const MIN_EVERY: Duration = Duration::from_millis(200);

/// Shows the tables until the operator ends it; prints with `print` what `--once` asks for.
pub(in crate::app) async fn run(
    args: TopArgs,
    mut print: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let chosen = args.view.as_deref().map(view_of).transpose()?;
    let client = AdminClient::new(&args.admin)?;
    if args.csv {
        let view = views::ALL[chosen.unwrap_or(0)];
        return print(&client.text(&format!("{}?format=csv", view.name)).await?);
    }
    let mut screen = Screen::new(chosen.unwrap_or(0), args.filter.clone(), has_colour());
    screen.sort_by(args.sort.as_deref())?;
    if args.once {
        screen.set(collect(&client).await);
        if let Some(problem) = screen.problem() {
            bail!("{problem}");
        }
        let shown = chosen.map_or_else(|| (0..views::ALL.len()).collect(), |view| vec![view]);
        return print(&screen.as_text(&shown));
    }
    if !io::stdout().is_terminal() {
        bail!("this is no terminal; `--once` prints the tables, `--once --csv` one of them");
    }
    // A first look before the screen is taken: an error is then a plain line.
    screen.set(collect(&client).await);
    if let Some(problem) = screen.problem() {
        bail!("{problem}");
    }
    let every = args.every.0.max(MIN_EVERY);
    let (sender, receiver) = watch::channel(json!(null));
    let looking = tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            if sender.send(collect(&client).await).is_err() {
                return;
            }
        }
    });
    let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let shown = show(&mut terminal, &mut screen, receiver);
    ratatui::restore();
    looking.abort();
    shown
}

/// Draws until the operator quits.
fn show(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    mut news: watch::Receiver<Value>,
) -> anyhow::Result<()> {
    let mut changed = true;
    loop {
        if changed {
            terminal.draw(|frame| screen.draw(frame))?;
        }
        changed = false;
        if event::poll(KEY_POLL)? {
            changed = true;
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
                if screen.key(KeyPress { code: key.code, ctrl }) {
                    return Ok(());
                }
            }
        }
        if news.has_changed().unwrap_or(false) {
            screen.set(news.borrow_and_update().clone());
            changed = true;
        }
    }
}

/// Everything that the tables show; an object with `problem` when the gateway does not answer.
async fn collect(client: &AdminClient) -> Value {
    let look = async {
        let status = client.get("status").await?;
        let queues = client.get("queues").await?;
        let requests = client.get("requests?limit=300").await?;
        anyhow::Ok(json!({
            "status": {
                "version": status["version"], "ready": status["ready"], "uptime_seconds": status["uptime_seconds"],
                "not_ready_reason": status["not_ready_reason"], "jobs": status["jobs"],
            },
            "matched": requests["matched"],
            "queues": queues["queues"],
            "pools": status["pools"],
            "replicas": status["replicas"],
            "tenants": status["tenants"],
            "requests": requests["requests"],
        }))
    };
    look.await.unwrap_or_else(|problem| json!({ "problem": format!("{problem:#}") }))
}

fn view_of(name: &str) -> anyhow::Result<usize> {
    let names = || views::ALL.map(|view: &View| view.name).join(", ");
    views::ALL
        .iter()
        .position(|view| view.name == name)
        .with_context(|| format!("there is no table `{name}`; there are: {}", names()))
}
