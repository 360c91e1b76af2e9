//! Ids that more than one service, or a client, gets to see.

use utoipa::ToSchema;

tasuki::typed_ids! {
    /// One API key or operator token; the public part of the credential.
    #[derive(ToSchema)]
    CredentialId;
    /// One attempt to deliver to a webhook.
    #[derive(ToSchema)]
    AttemptId;
    /// One webhook endpoint.
    #[derive(ToSchema)]
    EndpointId;
    /// One event, from the transaction that wrote it to its last delivery; the dedupe key.
    #[derive(ToSchema)]
    EventId;
    /// One running process of the platform.
    #[derive(ToSchema)]
    InstanceId;
    /// One notification to one person over one channel.
    #[derive(ToSchema)]
    NotificationId;
    /// One order, and the saga or the story that carries it out.
    #[derive(ToSchema)]
    OrderId;
    /// The one payment of an order.
    #[derive(ToSchema)]
    PaymentId;
    /// What is set aside for an order.
    #[derive(ToSchema)]
    ReservationId;
}
