//! Streams on JetStream: made once, never changed, asked what they hold.

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::stream::{Config, Info, RetentionPolicy, StorageType};
use uuid::Uuid;

use super::{NatsBus, ids};
use crate::bus::spec::to_micros;
use crate::bus::{
    Difference, Storage, Stored, StreamError, StreamSpec, StreamState, Streams, subject,
};

impl Streams for NatsBus {
    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, StreamError> {
        let info = match self.info(&spec.name).await? {
            Some(info) => info,
            None => self.create(spec).await?,
        };
        compared(spec, &info)
    }

    async fn compare_stream(&self, spec: &StreamSpec) -> Result<Option<StreamState>, StreamError> {
        let info = self.info(&spec.name).await?;
        info.map(|info| compared(spec, &info)).transpose()
    }

    async fn stream(&self, name: &str) -> Result<Option<StreamState>, StreamError> {
        let info = self.info(name).await?;
        Ok(info.as_ref().map(state))
    }

    async fn ids_at(
        &self,
        stream: &str,
        sequences: &[u64],
    ) -> Result<Vec<Option<Uuid>>, StreamError> {
        check_name(stream)?;
        ids::at(&self.api, stream, sequences).await
    }

    async fn message_at(&self, stream: &str, sequence: u64) -> Result<Option<Stored>, StreamError> {
        check_name(stream)?;
        ids::whole(&self.api, stream, sequence).await
    }

    async fn ids_between(
        &self,
        stream: &str,
        from: u64,
        to: u64,
    ) -> Result<Vec<(u64, Uuid)>, StreamError> {
        check_name(stream)?;
        ids::between(&self.api, stream, from, to).await
    }
}

impl NatsBus {
    /// What the broker tells of a stream; `None` if it does not exist.
    pub(super) async fn info(&self, name: &str) -> Result<Option<Info>, StreamError> {
        check_name(name)?;
        match self.api.look(format!("STREAM.INFO.{name}")).await {
            Ok(info) => Ok(Some(info)),
            Err(failure) if failure.is_not_found() => Ok(None),
            Err(failure) => Err(failure.about(name)),
        }
    }

    /// Makes a stream, or finds the one that somebody else made at the same moment.
    pub(super) async fn create(&self, spec: &StreamSpec) -> Result<Info, StreamError> {
        check_name(&spec.name)?;
        let path = format!("STREAM.CREATE.{}", spec.name);
        match self.api.ask(path, &self.config(spec)).await {
            Ok(info) => Ok(info),
            Err(failure) if failure.is(ErrorCode::STREAM_NAME_EXIST) => {
                let info = self.info(&spec.name).await?;
                info.ok_or_else(|| StreamError::not_found(&spec.name))
            }
            Err(failure) => Err(failure.about(&spec.name)),
        }
    }

    fn config(&self, spec: &StreamSpec) -> Config {
        // An older server would take the setting for a mistake, or ignore it.
        let can_batch = self.api.client().is_server_compatible(2, 12, 0);
        Config {
            name: spec.name.to_string(),
            subjects: spec.subjects.clone(),
            retention: RetentionPolicy::Limits,
            max_age: spec.max_age,
            duplicate_window: spec.duplicate_window,
            num_replicas: spec.replicas,
            storage: match spec.storage {
                Storage::File => StorageType::File,
                Storage::Memory => StorageType::Memory,
            },
            allow_direct: spec.direct_get,
            allow_atomic_publish: spec.atomic_publish && can_batch,
            ..Config::default()
        }
    }
}

/// A name becomes part of a subject: one with a dot would ask about something else.
pub(super) fn check_name(name: &str) -> Result<(), StreamError> {
    if subject::is_name(name) {
        return Ok(());
    }
    Err(StreamError::refused(format!("{name:?} can't be a name")))
}

/// The stream, if it has the settings of `spec`.
fn compared(spec: &StreamSpec, info: &Info) -> Result<StreamState, StreamError> {
    let mut differences = spec.differences(&found(&info.config));
    if info.config.retention != RetentionPolicy::Limits {
        // With any other policy the stream forgets what was acknowledged: neither a second
        // consumer nor reconciliation would find it.
        differences.push(Difference {
            field: "retention",
            wanted: "limits".to_owned(),
            found: format!("{:?}", info.config.retention).to_lowercase(),
        });
    }
    if differences.is_empty() {
        return Ok(state(info));
    }
    Err(StreamError::Mismatch {
        name: spec.name.to_string(),
        differences,
    })
}

pub(super) fn state(info: &Info) -> StreamState {
    let mut state = StreamState::new(info.config.name.as_str(), to_micros(info.created));
    state.first_sequence = info.state.first_sequence;
    state.last_sequence = info.state.last_sequence;
    state.messages = info.state.messages;
    state
}

/// The settings of an existing stream, in our words.
fn found(config: &Config) -> StreamSpec {
    let mut found = StreamSpec::new(config.name.as_str(), config.subjects.iter().cloned());
    found.duplicate_window = config.duplicate_window;
    found.max_age = config.max_age;
    found.replicas = config.num_replicas;
    found.storage = match config.storage {
        StorageType::File => Storage::File,
        StorageType::Memory => Storage::Memory,
    };
    found.atomic_publish = config.allow_atomic_publish;
    found.direct_get = config.allow_direct;
    found
}
