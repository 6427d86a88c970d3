// Package config makes one validated struct of everything that a user may
// set: defaults, then the configuration file, then the environment, then
// flags; the later wins.
//
// It is strict. A key that the file format does not have, a key that stands
// twice, a duration without a unit, a store URL with a secret in it: each is a
// [Problem] that names its line, variable or flag, and [Load] reports all of
// them at once. It is also the only package of the program that reads YAML.
//
// Secrets are no settings: they come from the environment and the files that
// the object stores' own clients read. A store URL that carries one is refused,
// and [Store] prints without whatever might be one.
//
// What a command needs is not checked by Load, because `inspect` needs no
// store and `list` no root; commands call [Config.One] and [Config.All] with
// the [Need] that they have.
package config
