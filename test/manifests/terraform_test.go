package manifests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

const policies = "../../deploy/policies"

// module is a main.tf with values for its variables.
type module struct {
	dir  string
	body *hclsyntax.Body
	ctx  *hcl.EvalContext
}

// load parses a main.tf, and knows those of Terraform's functions that it uses.
func load(t *testing.T, cloud string, vars map[string]string) *module {
	t.Helper()
	m := &module{dir: filepath.Join(policies, cloud)}
	f, diags := hclparse.NewParser().ParseHCLFile(filepath.Join(m.dir, "main.tf"))
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	m.body = f.Body.(*hclsyntax.Body)
	values := map[string]cty.Value{}
	for k, v := range vars {
		values[k] = cty.StringVal(v)
	}
	text := func(name string) function.Parameter { return function.Parameter{Name: name, Type: cty.String} }
	m.ctx = &hcl.EvalContext{
		Variables: map[string]cty.Value{
			"var": cty.ObjectVal(values), "path": cty.ObjectVal(map[string]cty.Value{"module": cty.StringVal(m.dir)}),
		},
		Functions: map[string]function.Function{
			"jsondecode": stdlib.JSONDecodeFunc, "replace": stdlib.ReplaceFunc, "setsubtract": function.New(&function.Spec{
				Params: []function.Parameter{{Name: "a", Type: cty.DynamicPseudoType}, {Name: "b", Type: cty.DynamicPseudoType}},
				Type:   function.StaticReturnType(cty.Set(cty.String)),
				Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
					a, err := convert.Convert(args[0], cty.Set(cty.String))
					if err != nil {
						return a, err
					}
					b, err := convert.Convert(args[1], cty.Set(cty.String))
					if err != nil {
						return b, err
					}
					return stdlib.SetSubtract(a, b)
				},
			}),
			"file": function.New(&function.Spec{
				Params: []function.Parameter{text("path")}, Type: function.StaticReturnType(cty.String),
				Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
					data, err := os.ReadFile(args[0].AsString())
					return cty.StringVal(string(data)), err
				},
			}),
		},
	}
	m.locals(t)
	return m
}

// locals evaluates what the file calls local, and checks that a value was given
// for each of its variables.
func (m *module) locals(t *testing.T) {
	t.Helper()
	locals := map[string]cty.Value{}
	for _, b := range m.body.Blocks {
		switch b.Type {
		case "locals":
			for name, a := range b.Body.Attributes {
				locals[name] = m.value(t, a.Expr)
			}
		case "variable":
			if !m.ctx.Variables["var"].Type().HasAttribute(b.Labels[0]) {
				t.Errorf("%s: variable %s has no value here", m.dir, b.Labels[0])
			}
		}
	}
	m.ctx.Variables["local"] = cty.ObjectVal(locals)
}

func (m *module) value(t *testing.T, e hcl.Expression) cty.Value {
	t.Helper()
	v, diags := e.Value(m.ctx)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	return v
}

// attribute evaluates one attribute of a resource, which may be in blocks of it.
func (m *module) attribute(t *testing.T, resource, name string, path ...string) cty.Value {
	t.Helper()
	for _, b := range m.body.Blocks {
		if b.Type != "resource" || strings.Join(b.Labels, ".") != resource {
			continue
		}
		body := b.Body
		for _, p := range append(path, "") {
			if a := body.Attributes[name]; p == "" && a != nil {
				return m.value(t, a.Expr)
			}
			for _, in := range body.Blocks {
				if in.Type == p {
					body = in.Body
				}
			}
		}
	}
	t.Fatalf("%s: no %s of %s", m.dir, name, resource)
	return cty.NilVal
}

// strs are the strings of a list or set, joined.
func strs(v cty.Value) string {
	var out []string
	for it := v.ElementIterator(); it.Next(); {
		_, e := it.Element()
		out = append(out, e.AsString())
	}
	return strings.Join(out, " ")
}

// readPolicy decodes a policy's file.
func readPolicy(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(policies, file))
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Terraform makes of the AWS policies what their files say, for another bucket and
// prefix: nothing is left of the names in the files.
func TestTerraformAWS(t *testing.T) {
	m := load(t, "aws", map[string]string{"bucket": "our-bucket", "prefix": "ml/ckpt"})
	for _, role := range []string{"sync", "read"} {
		m.ctx.Variables["each"] = cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal(role)})
		text := m.attribute(t, "aws_iam_policy.ckptsync", "policy").AsString()
		if !json.Valid([]byte(text)) {
			t.Errorf("%s is no JSON:\n%s", role, text)
		}
		for _, gone := range []string{"arn:aws:s3:::checkpoints", "team-a"} {
			if strings.Contains(text, gone) {
				t.Errorf("%s still names %s", role, gone)
			}
		}
		for _, want := range []string{`"arn:aws:s3:::our-bucket"`, `"arn:aws:s3:::our-bucket/ml/ckpt/*"`, `["ml/ckpt", "ml/ckpt/*"]`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not name %s:\n%s", role, want, text)
			}
		}
	}
	if got := m.attribute(t, "aws_s3_bucket_lifecycle_configuration.checkpoints", "prefix", "rule", "filter").AsString(); got != "ml/ckpt/" {
		t.Errorf("unfinished uploads are ended below %q", got)
	}
}

// The two roles of Google Cloud have all permissions of the file, each once.
func TestTerraformGCP(t *testing.T) {
	m := load(t, "gcp", map[string]string{"project": "p", "bucket": "our-bucket", "prefix": "ml/ckpt", "member": "serviceAccount:x"})
	var file struct{ IncludedPermissions []string }
	readPolicy(t, "gcp/sync.json", &file)
	sync, uploads := strs(m.attribute(t, "google_project_iam_custom_role.sync", "permissions")), strs(m.attribute(t, "google_project_iam_custom_role.uploads", "permissions"))
	if got := len(strings.Fields(sync)) + len(strings.Fields(uploads)); got != len(file.IncludedPermissions) {
		t.Errorf("the roles have %d permissions, the file %d", got, len(file.IncludedPermissions))
	}
	for _, p := range file.IncludedPermissions {
		if !strings.Contains(" "+sync+" "+uploads+" ", " "+p+" ") {
			t.Errorf("no role has %s", p)
		}
	}
	cond := m.attribute(t, "google_storage_bucket_iam_member.sync", "expression", "condition").AsString()
	for _, want := range []string{`"projects/_/buckets/our-bucket/objects/ml/ckpt/"`, `.startsWith("ml/ckpt/")`} {
		if !strings.Contains(cond, want) {
			t.Errorf("the condition does not say %s:\n%s", want, cond)
		}
	}
}

// The role of Azure has the actions of the file, and its condition the prefix.
func TestTerraformAzure(t *testing.T) {
	m := load(t, "azure", map[string]string{"container_id": "/subscriptions/1/c", "prefix": "ml/ckpt", "principal_id": "1"})
	var file struct{ DataActions []string }
	readPolicy(t, "azure/sync.json", &file)
	if got := strs(m.attribute(t, "azurerm_role_definition.sync", "data_actions", "permissions")); got != strings.Join(file.DataActions, " ") {
		t.Errorf("the role may %s, the file says %s", got, file.DataActions)
	}
	cond := m.attribute(t, "azurerm_role_assignment.sync", "condition").AsString()
	if strings.Count(cond, "StringStartsWith 'ml/ckpt/'") != 2 || strings.Count(cond, "(") != strings.Count(cond, ")") {
		t.Errorf("the condition does not bind to the prefix:\n%s", cond)
	}
}
