//! Ids that more than one service, or a client, gets to see.

use utoipa::ToSchema;

tasuki::typed_ids! {
    /// One API key or operator token; the public part of the credential.
    #[derive(ToSchema)]
    CredentialId;
    /// One running process of the platform.
    #[derive(ToSchema)]
    InstanceId;
}
