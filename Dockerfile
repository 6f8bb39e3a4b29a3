# Headrace with every connector of this repository, at the versions of constraints.txt.
FROM python:3.13-slim AS build
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /src
COPY . .
RUN uv venv /opt/headrace \
    && uv pip install --python /opt/headrace/bin/python --no-cache --constraints constraints.txt --build-constraints constraints.txt \
        . connectors/*/

FROM python:3.13-slim
COPY --from=build /opt/headrace /opt/headrace
RUN useradd --system --create-home headrace
USER headrace
WORKDIR /home/headrace
ENV PATH=/opt/headrace/bin:$PATH
EXPOSE 8970
ENTRYPOINT ["headrace"]
CMD ["serve", "/etc/headrace/headrace.yaml"]
