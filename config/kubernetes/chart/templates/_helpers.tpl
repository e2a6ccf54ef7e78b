{{- define "penstock.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "penstock.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "penstock.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "penstock.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: {{ include "penstock.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{ include "penstock.selector" . }}
{{- end }}

{{- define "penstock.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "penstock.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "penstock.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{- /* Whole seconds of one of the configuration's durations, such as 1m30s, rounded up. */}}
{{- define "penstock.seconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 }}
{{- $sum := 0 }}
{{- range regexFindAll "[0-9]+(ms|s|m|h|d)" . -1 }}
{{- $sum = add $sum (mul (regexFind "[0-9]+" . | int64) (get $units (regexFind "[a-z]+" .))) }}
{{- end }}
{{- div (add $sum 999) 1000 }}
{{- end }}

{{- /* A pool's name as the name of an object: the same rule as `penstock keda`. */}}
{{- define "penstock.objectName" -}}
{{- regexReplaceAll "[^a-z0-9]" (lower .) "-" | trunc 63 | trimAll "-" | default "pool" }}
{{- end }}

{{- /* The configuration: what the chart adds, then `config`. */}}
{{- define "penstock.config" -}}
{{- $full := include "penstock.fullname" . }}
{{- $bind := .Values.bindAddress }}
{{- $server := dict "listen" (printf "%s:8080" $bind) "admin" (printf "%s:8081" $bind) "drain_grace" "1m" }}
{{- $peers := dict "dns" (dict "name" (printf "%s-peers.%s.svc.%s" $full .Release.Namespace .Values.clusterDomain) "port" 8082) }}
{{- $scale := dict "listen" (printf "%s:8082" $bind) "state_file" "/var/lib/penstock/demand.json" }}
{{- if not .Values.config.cluster }}{{ $_ := set $scale "peers" $peers }}{{ end }}
{{- $own := dict "version" 1 "server" $server "scale" $scale }}
{{- $sections := dict "server" $server "admin" (dict) "scale" $scale }}
{{- range $name, $section := $sections }}
{{- $tls := get $.Values.tls $name }}
{{- if $tls.secretName }}
{{- $folder := printf "/run/penstock/tls/%s" $name }}
{{- $keys := dict "cert" (printf "%s/tls.crt" $folder) "key" (printf "%s/tls.key" $folder) }}
{{- if $tls.clientCa }}
{{- $_ := set $keys "client_ca" (printf "%s/ca.crt" $folder) }}
{{- if eq $name "scale" }}{{ $_ := set $keys "require_client_cert" true }}{{ end }}
{{- end }}
{{- $_ := set $section "tls" $keys }}
{{- $_ := set $own $name $section }}
{{- if eq $name "scale" }}
{{- $_ := set $peers "ca" (printf "%s/ca.crt" $folder) }}
{{- if $tls.clientCa }}
{{- $_ := set $peers "cert" $keys.cert }}
{{- $_ := set $peers "key" $keys.key }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.keys.existingSecret }}
{{- $_ := set $own "auth" (dict "keys_dir" "/run/penstock/keys") }}
{{- end }}
{{- if .Values.usage.enabled }}
{{- $usage := dict "folder" "/var/lib/penstock/usage" }}
{{- if .Values.usage.postgres.existingSecret }}
{{- $_ := set $usage "database" "postgres" }}
{{- $_ := set $usage "postgres" (dict "url" (dict "env" "PENSTOCK_DATABASE_URL")) }}
{{- end }}
{{- $_ := set $own "usage" $usage }}
{{- end }}
{{- if .Values.simulatedEngines.enabled }}
{{- $name := printf "%s-sim-engine.%s.svc.%s" $full .Release.Namespace .Values.clusterDomain }}
{{- $pool := dict "engine" "vllm" "models" (list .Values.simulatedEngines.model) "discover" (dict "dns" (dict "name" $name "port" 8000)) }}
{{- $_ := set $own "pools" (dict "simulated" $pool) }}
{{- end }}
{{- mergeOverwrite $own (deepCopy .Values.config) | toYaml }}
{{- end }}

{{- /* What Kubernetes discovery needs: {"namespaces": [...], "nodes": true|false}. */}}
{{- define "penstock.discovery" -}}
{{- $namespaces := dict }}
{{- $nodes := false }}
{{- range $_, $pool := .Values.config.pools }}
{{- with dig "discover" "kubernetes" nil $pool }}
{{- if not .server }}
{{- $_ := set $namespaces (default $.Release.Namespace .namespace) true }}
{{- if hasKey . "nodes" }}{{ $nodes = true }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- dict "namespaces" (keys $namespaces | sortAlpha) "nodes" $nodes | toJson }}
{{- end }}

{{- define "penstock.hasGateway" -}}
- namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .Release.Namespace }}}}
  podSelector:
    matchLabels:
      {{- include "penstock.selector" . | nindent 6 }}
      app.kubernetes.io/component: gateway
{{- end }}
