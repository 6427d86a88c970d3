package main

import "github.com/spf13/cobra"

func (a *app) completionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a shell's completion script",
		Long: `Print a script that completes ckptsync's commands and flags.

  bash:  source <(ckptsync completion bash)
  zsh:   ckptsync completion zsh > "${fpath[1]}/_ckptsync"
  fish:  ckptsync completion fish > ~/.config/fish/completions/ckptsync.fish`,
		GroupID:   "other",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), a.term.Out()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return root.GenPowerShellCompletionWithDesc(out)
		},
	}
}
