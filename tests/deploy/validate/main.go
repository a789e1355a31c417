// Renders what deploy/ ships, and reads every object as Kubernetes itself would: strictly, into the
// types of its API.
//
//	validate kustomize DIRECTORY
//	validate helm CHART VALUES.yaml RELEASE NAMESPACE
//	validate notes CHART VALUES.yaml RELEASE NAMESPACE
//	validate objects FILE.yaml
//
// It prints the objects as YAML documents; notes are what Helm says after it has installed them.
// Whatever Kubernetes would not know is an error.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sort"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	strict "sigs.k8s.io/yaml"
)

var kinds = map[string]func() any{
	"apps/v1 Deployment":                      func() any { return &apps.Deployment{} },
	"apps/v1 StatefulSet":                     func() any { return &apps.StatefulSet{} },
	"autoscaling/v2 HorizontalPodAutoscaler":  func() any { return &autoscaling.HorizontalPodAutoscaler{} },
	"monitoring.coreos.com/v1 PodMonitor":     func() any { return &monitoring.PodMonitor{} },
	"monitoring.coreos.com/v1 ServiceMonitor": func() any { return &monitoring.ServiceMonitor{} },
	"networking.k8s.io/v1 NetworkPolicy":      func() any { return &networking.NetworkPolicy{} },
	"policy/v1 PodDisruptionBudget":           func() any { return &policy.PodDisruptionBudget{} },
	"v1 ConfigMap":                            func() any { return &core.ConfigMap{} },
	"v1 Pod":                                  func() any { return &core.Pod{} },
	"v1 Secret":                               func() any { return &core.Secret{} },
	"v1 Service":                              func() any { return &core.Service{} },
	"v1 ServiceAccount":                       func() any { return &core.ServiceAccount{} },
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(words []string) error {
	if len(words) == 5 && words[0] == "notes" {
		_, notes, err := helm(words[1], words[2], words[3], words[4])
		fmt.Print(notes)
		return err
	}
	rendered, err := rendered(words)
	if err != nil {
		return err
	}
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(rendered)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := check(document); err != nil {
			return fmt.Errorf("%w in\n%s", err, document)
		}
	}
}

func rendered(words []string) ([]byte, error) {
	switch {
	case len(words) == 2 && words[0] == "objects":
		return os.ReadFile(words[1])
	case len(words) == 2 && words[0] == "kustomize":
		objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), words[1])
		if err != nil {
			return nil, err
		}
		return objects.AsYaml()
	case len(words) == 5 && words[0] == "helm":
		objects, _, err := helm(words[1], words[2], words[3], words[4])
		return objects, err
	}
	return nil, errors.New("say kustomize, helm, notes or objects")
}

func helm(directory, values, release, namespace string) ([]byte, string, error) {
	chart, err := loader.Load(directory)
	if err != nil {
		return nil, "", err
	}
	given, err := chartutil.ReadValuesFile(values)
	if err != nil {
		return nil, "", err
	}
	options := chartutil.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, given, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, "", err
	}
	files, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return nil, "", err
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	var out bytes.Buffer
	notes := ""
	for _, name := range names {
		if path.Base(name) == "NOTES.txt" {
			notes = files[name]
			continue
		}
		fmt.Fprintf(&out, "---\n%s\n", files[name])
	}
	return out.Bytes(), notes, nil
}

func check(document []byte) error {
	if len(bytes.TrimSpace(document)) == 0 {
		return nil
	}
	var kind meta.TypeMeta
	if err := strict.Unmarshal(document, &kind); err != nil {
		return err
	}
	if kind.Kind == "" {
		return nil
	}
	object, known := kinds[kind.APIVersion+" "+kind.Kind]
	if !known {
		return fmt.Errorf("%s %s is not known here", kind.APIVersion, kind.Kind)
	}
	if err := strict.UnmarshalStrict(document, object()); err != nil {
		return err
	}
	fmt.Printf("---\n%s\n", document)
	return nil
}
