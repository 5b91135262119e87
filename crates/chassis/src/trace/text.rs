//! Fields of an event as people read them.

use std::{error::Error, fmt};

use tracing::field::{Field, Visit};
use tracing_subscriber::{
    field::{MakeVisitor, VisitFmt, VisitOutput},
    fmt::format::{DefaultVisitor, Writer},
};

/// Means something to the journal only.
const HIDDEN: &str = "message_id";

/// The usual `name=value`, without the id of the event's kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForPeople;

impl<'a> MakeVisitor<Writer<'a>> for ForPeople {
    type Visitor = FieldsForPeople<'a>;

    fn make_visitor(&self, writer: Writer<'a>) -> Self::Visitor {
        FieldsForPeople(DefaultVisitor::new(writer, true))
    }
}

/// Writes one event's fields.
#[derive(Debug)]
pub(super) struct FieldsForPeople<'a>(DefaultVisitor<'a>);

impl Visit for FieldsForPeople<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() != HIDDEN {
            self.0.record_str(field, value);
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.0.record_error(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() != HIDDEN {
            self.0.record_debug(field, value);
        }
    }
}

impl VisitOutput<fmt::Result> for FieldsForPeople<'_> {
    fn finish(self) -> fmt::Result {
        self.0.finish()
    }
}

impl VisitFmt for FieldsForPeople<'_> {
    fn writer(&mut self) -> &mut dyn fmt::Write {
        self.0.writer()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use tracing_subscriber::{fmt as log, layer::SubscriberExt};

    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_for_people_has_every_field_but_the_id() {
        let page = Page::default();
        let writer = page.clone();
        let layer = log::layer()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .fmt_fields(ForPeople);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!(
                message_id = crate::event::MODEL_LOADED,
                took_ms = 3,
                isa = "avx2",
                "the model is loaded"
            );
        });
        let line = String::from_utf8(page.0.lock().unwrap().clone()).unwrap();
        assert!(
            line.trim_end()
                .ends_with("the model is loaded took_ms=3 isa=\"avx2\""),
            "{line}"
        );
        assert!(!line.contains(crate::event::MODEL_LOADED), "{line}");
    }
}
