variable "project" {
  type = string
}

variable "bucket" {
  type    = string
  default = "checkpoints"
}

variable "prefix" {
  type    = string
  default = "team-a"
}

# As serviceAccount:…, or of Workload Identity
# principal://iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/PROJECT.svc.id.goog/subject/ns/NAMESPACE/sa/ckptsync
variable "member" {
  type = string
}

locals {
  role = jsondecode(file("${path.module}/sync.json"))
  # Unfinished uploads are listed of the bucket as a whole.
  whole = ["storage.multipartUploads.list"]
}

resource "google_project_iam_custom_role" "sync" {
  project     = var.project
  role_id     = "ckptsyncSync"
  title       = local.role.title
  description = local.role.description
  permissions = setsubtract(local.role.includedPermissions, local.whole)
}

resource "google_project_iam_custom_role" "uploads" {
  project     = var.project
  role_id     = "ckptsyncUploads"
  title       = "ckptsync unfinished uploads"
  permissions = local.whole
}

# Listing is bounded by the prefix that is asked for, everything else by the
# object's name.
resource "google_storage_bucket_iam_member" "sync" {
  bucket = var.bucket
  role   = google_project_iam_custom_role.sync.id
  member = var.member
  condition {
    title      = "under-the-prefix"
    expression = <<-CEL
      resource.name.startsWith("projects/_/buckets/${var.bucket}/objects/${var.prefix}/") ||
      api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("${var.prefix}/")
    CEL
  }
}

resource "google_storage_bucket_iam_member" "uploads" {
  bucket = var.bucket
  role   = google_project_iam_custom_role.uploads.id
  member = var.member
}
