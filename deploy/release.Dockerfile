# What goreleaser has built, without building it again.
FROM gcr.io/distroless/static-debian12:nonroot
ARG TARGETPLATFORM
COPY $TARGETPLATFORM/ckptsync /ckptsync
USER 65532:65532
ENV PATH=/
ENTRYPOINT ["/ckptsync"]
CMD ["--help"]
