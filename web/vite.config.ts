import { defineConfig } from "vite";

// One script and one style sheet under names that stay, so that the package, and what a build changed in it, can be read.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/trueline/web/assets",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      input: "src/main.ts",
      output: { entryFileNames: "page.js", assetFileNames: "page.[ext]", format: "iife", codeSplitting: false },
    },
  },
});
