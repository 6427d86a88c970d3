# The program alone, for linux/amd64 and linux/arm64:
#   docker buildx build --platform linux/amd64,linux/arm64 --tag ghcr.io/ckptsync/ckptsync:dev .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags="-s -w" -o /ckptsync ./cmd/ckptsync

# Certificates, time zones, a user; no shell.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /ckptsync /ckptsync
USER 65532:65532
ENV PATH=/
ENTRYPOINT ["/ckptsync"]
CMD ["--help"]
