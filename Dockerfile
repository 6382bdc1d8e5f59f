# Tailrace without a compiler, for the CPU:
#
#   docker build -t tailrace .
#   docker run --rm -it --init -v "$PWD:/work" --user "$(id -u):$(id -g)" tailrace \
#     launch /usr/share/tailrace/configs/quickstart.yaml
#
# Runs are written below the folder that is mounted at /work. Programs with isolation `sandbox`, and
# the verifier `program`, need user namespaces, which Docker's own filter of system calls forbids:
# add --security-opt seccomp=unconfined, and ask `tailrace doctor`.

FROM debian:12 AS build
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends make ca-certificates
WORKDIR /tailrace
# The packages are a layer of their own, which a change of the sources leaves alone.
COPY scripts/setup.sh scripts/
RUN scripts/setup.sh
COPY . .
ARG JOBS=""
RUN make package CUDA=OFF JOBS="${JOBS:-$(nproc)}"

FROM debian:12-slim
COPY --from=build /tailrace/build/package/*.deb /tmp/
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends /tmp/*.deb \
    && rm -rf /tmp/*.deb /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["tailrace"]
CMD ["--help"]
