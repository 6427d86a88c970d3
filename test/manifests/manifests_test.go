// Package manifests holds the Kubernetes manifests of deploy/kubernetes against
// the types that Kubernetes, JobSet and the Kubeflow training operator decode them
// into, and evaluates the Terraform files of deploy/policies. It is a module of
// its own, so that none of those reach the product's go.mod.
package manifests

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"
)

// pods decodes a document strictly, and returns the pods that it makes.
func pods(t *testing.T, doc []byte) []corev1.PodSpec {
	t.Helper()
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &kind); err != nil {
		t.Fatal(err)
	}
	strict := func(into any) {
		t.Helper()
		if err := yaml.UnmarshalStrict(doc, into); err != nil {
			t.Fatalf("%s: %v", kind.Kind, err)
		}
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "v1 Service":
		strict(&corev1.Service{})
		return nil
	case "batch/v1 Job":
		var j batchv1.Job
		strict(&j)
		return []corev1.PodSpec{j.Spec.Template.Spec}
	case "jobset.x-k8s.io/v1alpha2 JobSet":
		var s jobset.JobSet
		strict(&s)
		var out []corev1.PodSpec
		for _, j := range s.Spec.ReplicatedJobs {
			out = append(out, j.Template.Spec.Template.Spec)
		}
		return out
	case "kubeflow.org/v1 PyTorchJob":
		var p kubeflow.PyTorchJob
		strict(&p)
		var out []corev1.PodSpec
		for _, r := range p.Spec.PyTorchReplicaSpecs {
			out = append(out, r.Template.Spec)
		}
		return out
	}
	t.Fatalf("%s %s is none of the kinds that are known here: nothing that needs a right in the cluster", kind.APIVersion, kind.Kind)
	return nil
}

func TestManifests(t *testing.T) {
	files, err := filepath.Glob("../../deploy/kubernetes/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			made := 0
			for _, doc := range bytes.Split(data, []byte("\n---\n")) {
				for _, p := range pods(t, doc) {
					made++
					checkPod(t, p)
				}
			}
			if made == 0 {
				t.Error("it makes no pod")
			}
		})
	}
}

// checkPod checks what the types do not say.
func checkPod(t *testing.T, p corev1.PodSpec) {
	t.Helper()
	if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken {
		t.Error("it may ask the Kubernetes API, and needs not")
	}
	s := p.SecurityContext
	if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser == 0 || s.SeccompProfile == nil {
		t.Error("the pod runs as root, or without a seccomp profile")
	}
	volumes := map[string]bool{}
	for _, v := range p.Volumes {
		volumes[v.Name] = true
	}
	restored, grace := false, time.Duration(0)
	for i, c := range append(p.InitContainers, p.Containers...) {
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s mounts %s, which the pod does not have", c.Name, m.Name)
			}
		}
		if sc := c.SecurityContext; sc == nil || sc.AllowPrivilegeEscalation == nil || *sc.AllowPrivilegeEscalation || sc.Capabilities == nil {
			t.Errorf("%s may gain privileges", c.Name)
		}
		if len(c.Command) < 2 || !strings.HasSuffix(c.Command[0], "ckptsync") {
			continue
		}
		for _, a := range c.Command {
			if v, ok := strings.CutPrefix(a, "--grace="); ok {
				var err error
				if grace, err = time.ParseDuration(v); err != nil {
					t.Error(err)
				}
			}
		}
		switch c.Command[1] {
		case "restore":
			restored = true
			if i != 0 || c.RestartPolicy != nil {
				t.Error("restore is not the first init container, which ends before the others begin")
			}
		case "daemon":
			checkSidecar(t, c, i < len(p.InitContainers))
		case "run":
			restored = true
		}
	}
	if !restored {
		t.Error("nothing restores")
	}
	if limit := p.TerminationGracePeriodSeconds; limit == nil || time.Duration(*limit)*time.Second < grace+10*time.Second || grace == 0 {
		t.Errorf("terminationGracePeriodSeconds leaves no room for --grace=%v", grace)
	}
}

func checkSidecar(t *testing.T, c corev1.Container, init bool) {
	t.Helper()
	if !init || c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Error("the daemon is no native sidecar")
	}
	if sc := c.SecurityContext; sc.ReadOnlyRootFilesystem == nil || !*sc.ReadOnlyRootFilesystem {
		t.Error("its root file system can be written to")
	}
	listens := false
	for _, a := range c.Command {
		listens = listens || len(c.Ports) == 1 && a == "--listen=0.0.0.0:"+jsonOf(c.Ports[0].ContainerPort)
	}
	if !listens {
		t.Error("it does not listen on the port that is declared, where the kubelet reaches it")
	}
	for path, p := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if p == nil || p.HTTPGet == nil || p.HTTPGet.Path != path || p.HTTPGet.Port.String() != c.Ports[0].Name {
			t.Errorf("the probe of %s is another: %+v", path, p)
		}
	}
	if c.StartupProbe == nil || c.Resources.Limits.Memory().IsZero() {
		t.Error("it has no startup probe, so that the trainer does not wait for it, or no limit of memory")
	}
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
