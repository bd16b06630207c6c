# The demo project: `docker compose up` builds this for the services setup, web and worker.
FROM python:3.13-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc pkg-config default-libmysqlclient-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY jobqueue jobqueue
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir ".[mysql,postgres,redis,demo]"

FROM python:3.13-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends libmariadb3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home app
COPY --from=build /venv /venv
WORKDIR /app
COPY manage.py ./
COPY demo_project demo_project
# The relay of the worker writes the demo's e-mails here.
RUN mkdir .demo && chown app .demo
USER app
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
# A worker is the container's first process: it gets SIGTERM from `docker stop` and finishes what it runs.
CMD ["python", "manage.py", "runworker"]
