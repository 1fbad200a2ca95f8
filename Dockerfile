# syntax=docker/dockerfile:1
# JupyterLab with BTT Lab for a user without privileges; docs/hosts.md says how to build and run it. Untried: it was written
# without a container engine, and tests/test_project.py checks ports, user and what is left out.
#
# A real card takes the host's XRT and the card's node, which the group `render` may use; /dev/xclmgmt…, which flashes and resets
# cards, stays outside:
# docker run … --device /dev/dri/renderD128 --group-add "$(getent group render | cut -d: -f3)" \
#     --volume /opt/xilinx/xrt:/opt/xilinx/xrt:ro --env XILINX_XRT=/opt/xilinx/xrt bttlab
#
# The base is not pinned by digest, for want of a registry of images to ask. Pin it where you build:
# docker build --build-arg BASE=docker.io/library/python:3.12-slim-bookworm@sha256:… .
ARG BASE=docker.io/library/python:3.12-slim-bookworm

FROM ${BASE} AS base
RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 lab

# What `make test` needs, for .devcontainer/.
FROM base AS development
RUN apt-get update && apt-get install --yes --no-install-recommends git g++ && rm -rf /var/lib/apt/lists/*

FROM base AS build
# torch for the CPU. Empty: the build for CUDA, of PyPI.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
WORKDIR /opt/bttlab
COPY . .
# With bytecode: the user, who cannot write any, would compile torch in every kernel.
RUN UV_COMPILE_BYTECODE=1 make environment PYTHON=python3

FROM base
# Root's, at the path that it was made at: the user can write to none of it.
COPY --from=build /opt/bttlab /opt/bttlab
ENV PATH=/opt/bttlab/.venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 JUPYTER_CONFIG_PATH=/opt/bttlab/tools/jupyter
USER lab
WORKDIR /home/lab
EXPOSE 8888
# The server listens on the container's addresses, asks for its token, and is published on the host's loopback alone.
CMD ["sh", "-c", "bttlab notebooks my_notebooks && bttlab doctor && exec jupyter lab --no-browser --KernelManager.transport=ipc --ServerApp.ip=0.0.0.0 --ServerApp.port=8888 --ServerApp.root_dir=/home/lab --LabApp.default_url=/lab/tree/my_notebooks/00_start_here.ipynb"]
