# Who trains and commits has sync.json, who only looks has read.json. With
# sse=kms of a key of your own, add kms:GenerateDataKey and kms:Decrypt of that
# key; with tags= s3:PutObjectTagging, with acl= s3:PutObjectAcl.
variable "bucket" {
  type    = string
  default = "checkpoints"
}

variable "prefix" {
  type    = string
  default = "team-a"
}

resource "aws_iam_policy" "ckptsync" {
  for_each = toset(["sync", "read"])
  name     = "ckptsync-${each.key}"
  policy = replace(replace(file("${path.module}/${each.key}.json"),
    "arn:aws:s3:::checkpoints", "arn:aws:s3:::${var.bucket}"),
  "team-a", var.prefix)
}

# Uploads that nobody ends any more cost money; the daemon gives its own up, and
# this those of runs that no daemon looks at again.
resource "aws_s3_bucket_lifecycle_configuration" "checkpoints" {
  bucket = var.bucket
  rule {
    id     = "unfinished-uploads"
    status = "Enabled"
    filter {
      prefix = "${var.prefix}/"
    }
    abort_incomplete_multipart_upload {
      days_after_initiation = 14
    }
  }
}
