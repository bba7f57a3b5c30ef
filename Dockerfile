# Two images of one file:
#   docker build -t trueline .                                                    reads Runs; without torch
#   docker build -t trueline-train --build-arg BASE=pytorch/pytorch:2.13.0-cuda12.8-cudnn9-runtime .
# Trueline takes the torch of BASE as it is, and installs none.
ARG BASE=python:3.11-slim

FROM python:3.11-slim AS wheel
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${BASE}
COPY --from=wheel /wheels /wheels
# the wheel is for Python 3.11 and all later ones
RUN python -m pip install --no-cache-dir "$(ls /wheels/*.whl)[view,xlsx,yaml]" && rm -rf /wheels
WORKDIR /work
EXPOSE 8000
ENTRYPOINT ["trueline"]
CMD ["--help"]
