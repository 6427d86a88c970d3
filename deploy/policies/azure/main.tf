variable "container_id" {
  description = "/subscriptions/…/blobServices/default/containers/checkpoints"
  type        = string
}

variable "prefix" {
  type    = string
  default = "team-a"
}

variable "principal_id" {
  description = "of the managed identity that the workload has"
  type        = string
}

locals {
  role   = jsondecode(file("${path.module}/sync.json"))
  action = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
}

resource "azurerm_role_definition" "sync" {
  name  = local.role.Name
  scope = var.container_id
  permissions {
    data_actions = local.role.DataActions
  }
}

# ABAC: reading, writing and deleting below the prefix alone; a listing may ask
# for what is below it.
resource "azurerm_role_assignment" "sync" {
  scope              = var.container_id
  role_definition_id = azurerm_role_definition.sync.role_definition_resource_id
  principal_id       = var.principal_id
  condition_version  = "2.0"
  condition          = <<-ABAC
    (
      (
        !(ActionMatches{'${local.action}/read'} AND NOT SubOperationMatches{'Blob.List'}) AND
        !(ActionMatches{'${local.action}/write'}) AND
        !(ActionMatches{'${local.action}/delete'})
      )
      OR @Resource[${local.action}:path] StringStartsWith '${var.prefix}/'
    )
    AND
    (
      !(ActionMatches{'${local.action}/read'} AND SubOperationMatches{'Blob.List'})
      OR @Request[${local.action}:prefix] StringStartsWith '${var.prefix}/'
    )
  ABAC
}
