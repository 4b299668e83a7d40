# syntax=docker/dockerfile:1
# An image for agents in pods: Python for what runs there for the worker, git for the copy of the workspace, Claude Code,
# and nothing of Steersman's, which comes when a pod is used. Build:
#   docker build -f deploy/kubernetes/agent.Dockerfile -t REGISTRY/steersman-agent:TAG deploy/kubernetes
# What your agents build and test with belongs into an image of yours, FROM this one.
ARG NODE_IMAGE=node:22-bookworm-slim
FROM ${NODE_IMAGE}

# The version that the worker's own library brings along, and that Steersman is tested with.
ARG CLAUDE_CODE_VERSION=2.1.327
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git python3 \
    && rm -rf /var/lib/apt/lists/* \
    && npm install --global "@anthropic-ai/claude-code@${CLAUDE_CODE_VERSION}" \
    && npm cache clean --force \
    && claude --version \
    && userdel --remove node \
    && useradd --uid 1000 --home-dir /home/agent --create-home --shell /bin/bash agent

# What a pod has it run as anyway. Its root file system cannot be written there, but for the home and /tmp.
USER 1000:1000
WORKDIR /home/agent
