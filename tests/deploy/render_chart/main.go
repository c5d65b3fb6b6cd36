// Renders a Helm chart as `helm template` does: Go's templates with sprig and the functions that Helm
// adds, values merged as Helm merges them, files read through symbolic links.
//
// usage: render_chart CHART RELEASE NAMESPACE [VALUES.yaml...]
// Writes JSON: {"values": merged values, "files": {"templates/x.yaml": text}}. Not covered, because the
// chart does not use it: subcharts, hooks, lookup of a cluster, TOML.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

type values = map[string]interface{}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "render_chart:", err)
	os.Exit(1)
}

func readYaml(name string) values {
	text, err := os.ReadFile(name)
	if err != nil {
		fail(err)
	}
	parsed := values{}
	if err := yaml.Unmarshal(text, &parsed); err != nil {
		fail(fmt.Errorf("%s: %w", name, err))
	}
	return parsed
}

// The later value wins; maps are merged; null takes a key away.
func merge(into, from values) {
	for key, value := range from {
		inner, isMap := value.(values)
		outer, wasMap := into[key].(values)
		switch {
		case value == nil:
			delete(into, key)
		case isMap && wasMap:
			merge(outer, inner)
		default:
			into[key] = value
		}
	}
}

// The chart's files, without its templates, by their path with slashes.
type files map[string][]byte

func (f files) Get(name string) string { return string(f[name]) }

func (f files) Glob(pattern string) files {
	found := files{}
	for name, text := range f {
		if match, _ := path.Match(pattern, name); match {
			found[name] = text
		}
	}
	return found
}

func (f files) AsConfig() string {
	texts := map[string]string{}
	for name, text := range f {
		texts[path.Base(name)] = string(text)
	}
	return toYaml(texts)
}

// Walks through links to files and folders, as Helm's loader does.
func (f files) load(root, below string) {
	entries, err := os.ReadDir(filepath.Join(root, below))
	if err != nil {
		fail(err)
	}
	for _, entry := range entries {
		name := path.Join(below, entry.Name())
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			fail(err)
		}
		if info.IsDir() {
			f.load(root, name)
			continue
		}
		if f[name], err = os.ReadFile(filepath.Join(root, name)); err != nil {
			fail(err)
		}
	}
}

func toYaml(value interface{}) string {
	text, err := yaml.Marshal(value)
	if err != nil {
		return "" // as Helm: a template cannot fail here
	}
	return strings.TrimSuffix(string(text), "\n")
}

func fromYaml(text string) values {
	parsed := values{}
	if err := yaml.Unmarshal([]byte(text), &parsed); err != nil {
		parsed["Error"] = err.Error()
	}
	return parsed
}

func helmFunctions(all *template.Template) template.FuncMap {
	functions := sprig.TxtFuncMap()
	delete(functions, "env") // Helm takes these away: a chart must not read the machine
	delete(functions, "expandenv")
	functions["toYaml"] = toYaml
	functions["fromYaml"] = fromYaml
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out strings.Builder
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, errors.New(message)
		}
		return value, nil
	}
	functions["tpl"] = func(text string, data interface{}) (string, error) {
		clone, err := all.Clone()
		if err != nil {
			return "", err
		}
		if clone, err = clone.New("tpl").Parse(text); err != nil {
			return "", err
		}
		var out strings.Builder
		err = clone.Execute(&out, data)
		return out.String(), err
	}
	return functions
}

// Chart.yaml as templates see it: .Chart.AppVersion for appVersion.
func chartFields(parsed values) values {
	fields := values{}
	for key, value := range parsed {
		fields[strings.ToUpper(key[:1])+key[1:]] = value
	}
	return fields
}

func main() {
	if len(os.Args) < 4 {
		fail(errors.New("usage: render_chart CHART RELEASE NAMESPACE [VALUES.yaml...]"))
	}
	root := os.Args[1]
	merged := readYaml(filepath.Join(root, "values.yaml"))
	for _, name := range os.Args[4:] {
		merge(merged, readYaml(name))
	}
	chart := readYaml(filepath.Join(root, "Chart.yaml"))
	everything, templates, others := files{}, files{}, files{}
	everything.load(root, "")
	for name, text := range everything {
		if strings.HasPrefix(name, "templates/") {
			templates[name] = text
		} else {
			others[name] = text
		}
	}
	data := values{
		"Values":  merged,
		"Chart":   chartFields(chart),
		"Files":   others,
		"Release": values{"Name": os.Args[2], "Namespace": os.Args[3], "Service": "Helm", "IsInstall": true},
	}
	all := template.New("chart").Option("missingkey=zero")
	all.Funcs(helmFunctions(all))
	for name, text := range templates {
		if _, err := all.New(name).Parse(string(text)); err != nil {
			fail(err)
		}
	}
	rendered := map[string]string{}
	for name := range templates {
		if strings.HasPrefix(path.Base(name), "_") {
			continue
		}
		var out strings.Builder
		if err := all.ExecuteTemplate(&out, name, data); err != nil {
			fail(err)
		}
		rendered[name] = strings.ReplaceAll(out.String(), "<no value>", "")
	}
	json.NewEncoder(os.Stdout).Encode(values{"values": merged, "files": rendered})
}
